// What a kernel's body may use: the thread it runs as, element types, 16-byte vectors. Bodies are templates
// over the thread: DeviceThread under nvcc, EmulatedThread (emulated.h) on the host. The two compilations lie
// in namespaces of their own, so that one program can hold both.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "exec/cuda/kernels.h"

#if defined(__CUDACC__)
#include "exec/cuda/device/element_types.cuh"
#define kernel_body device_body
#define SMSIM_DEVICE __device__ __forceinline__
#define SMSIM_HOST_DEVICE __host__ __device__ __forceinline__
#define SMSIM_UNROLL _Pragma("unroll")
#define SMSIM_UNROLL_2 _Pragma("unroll 2")
#define SMSIM_UNROLL_4 _Pragma("unroll 4")
#else
#define kernel_body host_body
#define SMSIM_DEVICE inline
#define SMSIM_HOST_DEVICE inline
#define SMSIM_UNROLL
#define SMSIM_UNROLL_2
#define SMSIM_UNROLL_4
#endif

namespace exec::cuda::kernel_body {

// An array "whatever its elements are" as what it holds.
template <class T>
SMSIM_HOST_DEVICE T* as(void* data) {
    return static_cast<T*>(data);
}
template <class T>
SMSIM_HOST_DEVICE T* as(const void* data) {
    static_assert(std::is_const_v<T>, "a constant array has constant elements");
    return static_cast<T*>(data);
}

struct Bf16 {
    std::uint16_t bits;
};
struct Fp16 {
    std::uint16_t bits;
};

SMSIM_HOST_DEVICE float to_float(float x) { return x; }
SMSIM_HOST_DEVICE float to_float(Bf16 x) {
#if defined(__CUDA_ARCH__)
    return __uint_as_float(unsigned{x.bits} << 16);
#else
    const std::uint32_t bits = std::uint32_t{x.bits} << 16;
    float result;
    std::memcpy(&result, &bits, sizeof result);
    return result;
#endif
}
SMSIM_HOST_DEVICE float to_float(Fp16 x) {
#if defined(__CUDA_ARCH__)
    return __half2float(__half(__half_raw{x.bits}));
#else
    // Sign, five bits of exponent (bias 15), ten of fraction: normal numbers, subnormal ones, infinities.
    const int exponent = x.bits >> 10 & 31, fraction = x.bits & 1023;
    const float sign = x.bits & 0x8000 ? -1.0f : 1.0f;
    if (exponent == 31) return fraction ? NAN : sign * INFINITY;
    return sign * (exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                 : std::ldexp(static_cast<float>(fraction + 1024), exponent - 25));
#endif
}

template <class T>
SMSIM_HOST_DEVICE T from_float(float x);
template <>
SMSIM_HOST_DEVICE float from_float<float>(float x) {
    return x;
}
template <>
SMSIM_HOST_DEVICE Bf16 from_float<Bf16>(float x) {
#if defined(__CUDA_ARCH__)
    return {static_cast<__nv_bfloat16_raw>(__float2bfloat16_rn(x)).x};
#else
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return {0x7FFF};
    return {
        static_cast<std::uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16)};  // to nearest, ties to even
#endif
}
template <>
SMSIM_HOST_DEVICE Fp16 from_float<Fp16>(float x) {
#if defined(__CUDA_ARCH__)
    return {static_cast<__half_raw>(__float2half_rn(x)).x};
#else
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000u);
    const float size = std::fabs(x);
    if (std::isnan(x)) return {0x7FFF};
    if (size == 0.0f) return {sign};
    if (size >= 65520.0f) return {static_cast<std::uint16_t>(sign | 0x7C00u)};
    int exponent = 0;
    std::frexp(size, &exponent);                                  // size = f 2^exponent, 1/2 <= f < 1
    const int scale = exponent - 11 < -24 ? -24 : exponent - 11;  // of the last of eleven bits
    const auto units = static_cast<std::uint16_t>(std::nearbyint(std::ldexp(size, -scale)));
    if (scale == -24 && units < 1024) return {static_cast<std::uint16_t>(sign | units)};
    return {static_cast<std::uint16_t>(sign | (((scale + 24) << 10) + units))};
#endif
}

SMSIM_DEVICE float value_at(const Values& values, std::int64_t i) {
    switch (values.type) {
        case Type::fp32: return as<const float>(values.data)[i];
        case Type::bf16: return to_float(as<const Bf16>(values.data)[i]);
        case Type::fp16: return to_float(as<const Fp16>(values.data)[i]);
    }
    return 0;
}
template <class T, int V, bool is_aligned>
SMSIM_DEVICE void widen_from(const T* from, float (&out)[V]);
// V neighbours at once: one load each where they lie aligned, which is to be found out unless it is known.
template <int V, bool is_aligned = false>
SMSIM_DEVICE void values_at(const Values& values, std::int64_t i, float (&out)[V]) {
    switch (values.type) {
        case Type::fp32: widen_from<float, V, is_aligned>(as<const float>(values.data) + i, out); break;
        case Type::bf16: widen_from<Bf16, V, is_aligned>(as<const Bf16>(values.data) + i, out); break;
        case Type::fp16: widen_from<Fp16, V, is_aligned>(as<const Fp16>(values.data) + i, out); break;
    }
}
template <class T>
SMSIM_DEVICE void add_to(T& at, float x, bool accumulates) {
    at = from_float<T>(accumulates ? to_float(at) + x : x);
}
SMSIM_DEVICE void add_at(const Sums& sums, std::int64_t i, float x) {
    switch (sums.type) {
        case Type::fp32: add_to(as<float>(sums.data)[i], x, sums.accumulates); break;
        case Type::bf16: add_to(as<Bf16>(sums.data)[i], x, sums.accumulates); break;
        case Type::fp16: add_to(as<Fp16>(sums.data)[i], x, sums.accumulates); break;
    }
}

// V elements that are loaded and stored together.
template <class T, int V>
struct alignas(sizeof(T) * V) Pack {
    T at[V];
};
// Said in words of the machine: of packs of halves nvcc makes loads and stores of 4 bytes here and there.
template <class T, int V>
SMSIM_DEVICE Pack<T, V> load(const T* from) {
#if defined(__CUDA_ARCH__)
    if constexpr (sizeof(T) * V % 16 == 0) {
        Pack<T, V> pack;
        uint4 words[sizeof(T) * V / 16];
        SMSIM_UNROLL
        for (int w = 0; w < static_cast<int>(sizeof(T) * V / 16); ++w)
            words[w] = reinterpret_cast<const uint4*>(from)[w];
        memcpy(&pack, words, sizeof pack);
        return pack;
    }
#endif
    return *reinterpret_cast<const Pack<T, V>*>(from);
}
template <class T, int V>
SMSIM_DEVICE void store(T* to, const Pack<T, V>& pack) {
#if defined(__CUDA_ARCH__)
    if constexpr (sizeof(T) * V % 16 == 0) {
        unsigned words[sizeof(T) * V / 4];
        memcpy(words, &pack, sizeof pack);
        SMSIM_UNROLL
        for (int w = 0; w < static_cast<int>(sizeof(T) * V / 4); w += 4)
            asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(
                             __cvta_generic_to_global(reinterpret_cast<unsigned*>(to) + w)),
                         "r"(words[w]), "r"(words[w + 1]), "r"(words[w + 2]), "r"(words[w + 3])
                         : "memory");
        return;
    }
#endif
    *reinterpret_cast<Pack<T, V>*>(to) = pack;
}
template <class T, int V, bool is_aligned>
SMSIM_DEVICE void widen_from(const T* from, float (&out)[V]) {
    constexpr int at_once = sizeof(T) * V > 16 ? 16 / sizeof(T) : V;  // no load is wider than 16 bytes
    if (is_aligned || reinterpret_cast<std::uintptr_t>(from) % (sizeof(T) * at_once) == 0) {
        for (int k = 0; k < V; k += at_once) {
            const Pack<T, at_once> pack = load<T, at_once>(from + k);
            for (int j = 0; j < at_once; ++j) out[k + j] = to_float(pack.at[j]);
        }
    } else {
        for (int j = 0; j < V; ++j) out[j] = to_float(from[j]);
    }
}
// y = values, or y = base + values where there is a base (y itself, or another array).
template <class T, int V>
SMSIM_DEVICE void put(T* to, const float (&values)[V], const T* base) {
    Pack<T, V> pack;
    if (base) {
        pack = load<T, V>(base);
        for (int j = 0; j < V; ++j) pack.at[j] = from_float<T>(to_float(pack.at[j]) + values[j]);
    } else {
        for (int j = 0; j < V; ++j) pack.at[j] = from_float<T>(values[j]);
    }
    store<T, V>(to, pack);
}
template <class T, int V>
SMSIM_DEVICE void put(T* to, const float (&values)[V], bool accumulates) {
    put<T, V>(to, values, accumulates ? to : static_cast<const T*>(nullptr));
}

// Quotient and remainder of numbers that are not negative: 64-bit division takes a GPU some hundred
// instructions, 32-bit division a fifth of that.
struct Divided {
    std::int64_t quotient, remainder;
};
SMSIM_DEVICE Divided divide(std::int64_t a, std::int64_t b) {
    if (((a | b) >> 32) == 0) {
        const auto x = static_cast<std::uint32_t>(a), y = static_cast<std::uint32_t>(b);
        return {x / y, x % y};
    }
    return {a / b, a % b};
}

// Place in its sequence of a sample's row number `token`.
SMSIM_DEVICE std::int64_t position_of(const TokenRange& token_range, std::int64_t token) {
    if (token_range.part == 0) return token;
    return token < token_range.part ? token_range.first + token
                                    : token_range.second + token - token_range.part;
}

// exp and division for values that are rounded to T: in half precisions the hardware's approximations (2^-21)
// are as good as exact.
template <class T>
SMSIM_DEVICE float exponential(float x) {
#if defined(__CUDA_ARCH__)
    if constexpr (sizeof(T) == 2) return __expf(x);
#endif
    return expf(x);
}
template <class T>
SMSIM_DEVICE float reciprocal_of(float x) {
#if defined(__CUDA_ARCH__)
    if constexpr (sizeof(T) == 2) return __fdividef(1.0f, x);
#endif
    return 1.0f / x;
}

#if defined(__CUDACC__)
struct DeviceThread {
    static constexpr bool is_emulated = false;
    SMSIM_DEVICE int thread() const { return static_cast<int>(threadIdx.x); }
    SMSIM_DEVICE int threads() const { return static_cast<int>(blockDim.x); }
    SMSIM_DEVICE std::int64_t block() const { return blockIdx.x; }
    SMSIM_DEVICE std::int64_t blocks() const { return gridDim.x; }
    SMSIM_DEVICE void synchronize() const { __syncthreads(); }
    SMSIM_DEVICE float exchange(float x, int mask) const { return __shfl_xor_sync(0xFFFFFFFFu, x, mask); }
    SMSIM_DEVICE unsigned ballot(bool vote) const { return __ballot_sync(0xFFFFFFFFu, vote); }
    template <class T>
    SMSIM_DEVICE T* shared() const {
        extern __shared__ __align__(16) unsigned char memory[];
        return reinterpret_cast<T*>(memory);
    }
};
#endif

template <class Thread>
SMSIM_DEVICE float warp_sum(const Thread& t, float x) {
    for (int mask = 16; mask > 0; mask /= 2) x += t.exchange(x, mask);
    return x;
}
template <class Thread>
SMSIM_DEVICE float warp_max(const Thread& t, float x) {
    for (int mask = 16; mask > 0; mask /= 2) {
        const float other = t.exchange(x, mask);
        x = x > other ? x : other;
    }
    return x;
}
// Over all threads of the block, the same in each. `scratch`: 32 floats of shared memory, free again after
// the call.
template <class Thread>
SMSIM_DEVICE float block_sum(const Thread& t, float x, float* scratch) {
    x = warp_sum(t, x);
    if (t.threads() == 32) return x;
    if (t.thread() % 32 == 0) scratch[t.thread() / 32] = x;
    t.synchronize();
    float sum = 0;
    for (int w = 0; w < t.threads() / 32; ++w) sum += scratch[w];
    t.synchronize();
    return sum;
}
template <class Thread>
SMSIM_DEVICE float block_max(const Thread& t, float x, float* scratch) {
    x = warp_max(t, x);
    if (t.threads() == 32) return x;
    if (t.thread() % 32 == 0) scratch[t.thread() / 32] = x;
    t.synchronize();
    float most = scratch[0];
    for (int w = 1; w < t.threads() / 32; ++w) most = most > scratch[w] ? most : scratch[w];
    t.synchronize();
    return most;
}

// The hash behind dropout: core::mix64(key + golden ratio * counter), as on the CPU.
SMSIM_DEVICE bool is_dropped(std::uint64_t key, std::uint64_t counter, std::uint64_t threshold) {
    std::uint64_t z = key + 0x9E3779B97F4A7C15ull * counter + 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return ((z ^ (z >> 31)) >> 32) < threshold;
}
SMSIM_HOST_DEVICE std::uint64_t threshold_of(float probability) {
    constexpr double hash_values = 4294967296.0;  // 2^32: the bits of a hash that decide
    return static_cast<std::uint64_t>(probability * hash_values);
}

}  // namespace exec::cuda::kernel_body
