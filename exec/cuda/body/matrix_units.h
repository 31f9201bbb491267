// Matrix units through the fragments that a warp's threads hold: 16 x 16 times 16 x 8 halves, summed in fp32.
// PTX ISA 8.7, "mma.m16n8k16", "mma.m16n8k8" and "ldmatrix", says which thread holds what. With g = lane / 4
// and p = 2 (lane % 4):
//   a, 16 x 16, in four words of two halves: (g, p), (g + 8, p), (g, p + 8), (g + 8, p + 8), each with the
//     column after it;
//   b, 16 x 8, in two words: rows p and p + 8 of column g, each with the row after it;
//   sums, 16 x 8, in four floats: (g, p), (g, p + 1), (g + 8, p), (g + 8, p + 1).
// In tf32 the depth is 8, a word is a number, and with q = lane % 4 words are (g, q), (g + 8, q), (g, q + 4),
// (g + 8, q + 4) of a, (q, g) and (q + 4, g) of b; sums are as above.
#pragma once

#include "exec/cuda/body/thread.h"

#if !defined(__CUDACC__)
#include "exec/cuda/body/emulated.h"
#endif

namespace exec::cuda::kernel_body {

// fp32 in memory that is multiplied in tf32, ten bits of fraction, and summed in fp32.
struct Tf32 {
    float value;
};
SMSIM_HOST_DEVICE float to_float(Tf32 x) { return x.value; }
template <>
SMSIM_HOST_DEVICE Tf32 from_float<Tf32>(float x) {
    return {x};
}

// The nearest number of tf32, ties away from zero, as its bits.
SMSIM_DEVICE std::uint32_t rounded_to_tf32(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    std::uint32_t bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
#else
    std::uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    constexpr std::uint32_t dropped = 13, exponent = 0x7F800000u;
    if ((bits & exponent) == exponent) return bits;  // infinities, and what is no number
    return ((bits + (1u << (dropped - 1))) >> dropped) << dropped;
#endif
}

#if defined(__CUDACC__)

// Ampere and later have them for both halves and tf32, Turing for fp16: as two products of half the depth.
template <class T>
SMSIM_DEVICE constexpr bool has_matrix_units(const DeviceThread&) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    return sizeof(T) == 2 || std::is_same_v<T, Tf32>;
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 750
    return std::is_same_v<T, Fp16>;
#else
    return false;
#endif
}

// Four 8 x 8 matrices of halves from shared memory: lane l names row l % 8 (16 bytes, aligned) of matrix
// l / 8, and gets of matrix i two neighbours of row lane / 4 in word i; where transposed, of column lane / 4.
template <bool is_transposed>
SMSIM_DEVICE void load_matrices(const DeviceThread&, const void* row, std::uint32_t (&words)[4]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 750
    const unsigned address = __cvta_generic_to_shared(row);
    if constexpr (is_transposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                     : "r"(address)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                     : "r"(address)
                     : "memory");
#endif
}

// sums += a b.
template <class T>
SMSIM_DEVICE void multiply_matrices(const DeviceThread&, float (&sums)[4], const std::uint32_t (&a)[4],
                                    std::uint32_t b_low, std::uint32_t b_high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    if constexpr (std::is_same_v<T, Bf16>)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
            "{%8, %9}, {%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_low), "r"(b_high));
    else if constexpr (std::is_same_v<T, Tf32>)
        asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
            "{%8, %9}, {%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_low), "r"(b_high));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
            "{%8, %9}, {%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b_low), "r"(b_high));
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 750
    const std::uint32_t b[2] = {b_low, b_high};
    SMSIM_UNROLL
    for (int half = 0; half < 2; ++half)
        asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
            "{%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(a[2 * half]), "r"(a[2 * half + 1]), "r"(b[half]));
#endif
}

#else

// A thread that is to have none (tests) says so by a member of its own.
template <class T, class Thread>
constexpr bool has_matrix_units(const Thread&) {
    if constexpr (requires { Thread::has_no_matrix_units; }) return false;
    else return sizeof(T) == 2 || std::is_same_v<T, Tf32>;
}

template <bool is_transposed>
void load_matrices(const emulation::EmulatedThread& t, const void* row, std::uint32_t (&words)[4]) {
    emulation::WarpWords given;
    static_assert(sizeof row <= sizeof(emulation::LaneWords), "an address is shown as words");
    emulation::LaneWords own{};
    std::memcpy(own.data(), &row, sizeof row);
    t.share(own, given);
    const int lane = t.thread() % 32, pair = 2 * (lane % 4);
    for (int i = 0; i < 4; ++i) {
        const auto half = [&](int r, int column) {
            const std::uint16_t* halves = nullptr;
            std::memcpy(&halves, given[8 * i + r].data(), sizeof halves);
            return std::uint32_t{halves[column]};
        };
        words[i] = is_transposed ? half(pair, lane / 4) | half(pair + 1, lane / 4) << 16
                                 : half(lane / 4, pair) | half(lane / 4, pair + 1) << 16;
    }
}

template <class T>
void multiply_matrices(const emulation::EmulatedThread& t, float (&sums)[4], const std::uint32_t (&a)[4],
                       std::uint32_t b_low, std::uint32_t b_high) {
    emulation::WarpWords given;
    t.share({a[0], a[1], a[2], a[3], b_low, b_high}, given);
    // Numbers of a word; half of the depth is words of four lanes.
    constexpr int numbers = sizeof(std::uint32_t) / sizeof(T);
    const auto number = [](std::uint32_t word, int index) {
        T all[numbers];
        std::memcpy(all, &word, sizeof word);
        return to_float(all[index]);
    };
    const int lane = t.thread() % 32;
    for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + i / 2 * 8, column = 2 * (lane % 4) + i % 2;
        for (int k = 0; k < 8 * numbers; ++k) {
            const int half = k / (4 * numbers), from = k / numbers % 4;
            const std::uint32_t left = given[row % 8 * 4 + from][row / 8 + half * 2],
                                right = given[column * 4 + from][4 + half];
            sums[i] += number(left, k % numbers) * number(right, k % numbers);
        }
    }
}

#endif

}  // namespace exec::cuda::kernel_body
