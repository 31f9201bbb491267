// Norms and gated activations that write their result in fp8 too, in the pass that writes it in bf16.
//
// The scale of a tensor follows from its largest magnitude (exec/float8.h), which is known when all of it has
// been computed: too late for the pass itself. So the pass takes the scale that the same tensor had the last
// time, and finds the largest magnitude; a small launch after it compares, and casts again where the scale is
// another one. Scales are powers of two and change seldom. Whatever was guessed, the octets and their scale
// are those of two passes: nothing of earlier steps is left in them.
//
// Bytes of device memory for n elements of bf16: 2 written, 2 read for the magnitude, 2 read and 1 written by
// the cast, 7 n in all; here 3 n.
#pragma once

#include "exec/cuda/body/launch.h"

namespace exec::cuda::kernel_body {

// Infinite for what is no number, too.
SMSIM_DEVICE float magnitude_of(float x) {
    const float size = fabsf(x);
    return size <= 3.402823466e38f ? size : INFINITY;
}

// Both at once: the hardware converts pairs.
template <Float8 format>
SMSIM_DEVICE void narrow(float a, float b, std::uint8_t* to) {
#if defined(__CUDA_ARCH__)
    const __nv_fp8x2_storage_t pair = __nv_cvt_float2_to_fp8x2(
        make_float2(a, b), __NV_SATFINITE, format == Float8::e4m3 ? __NV_E4M3 : __NV_E5M2);
    to[0] = static_cast<std::uint8_t>(pair & 0xFF);
    to[1] = static_cast<std::uint8_t>(pair >> 8);
#else
    to[0] = to_float8(format, a);
    to[1] = to_float8(format, b);
#endif
}

// What one thread knows of the cast.
template <class T, int V>
class OctetsOfThread {
public:
    template <class Thread>
    SMSIM_DEVICE OctetsOfThread(const Thread& t, const CastAlong& cast)
        : octets_(cast.octets), scale_(*cast.guess) {
        if (t.block() == 0 && t.thread() == 0) *cast.guessed = scale_;
    }
    // Elements from `at` on, as they are rounded to T.
    SMSIM_DEVICE void operator()(std::int64_t at, const float (&values)[V]) {
        float rounded[V + V % 2] = {};
        SMSIM_UNROLL
        for (int j = 0; j < V; ++j) {
            rounded[j] = to_float(from_float<T>(values[j]));
            const float size = magnitude_of(rounded[j]);
            most_ = size > most_ ? size : most_;
        }
        std::uint8_t narrowed[V + V % 2];
        SMSIM_UNROLL
        for (int j = 0; j < V; j += 2)
            narrow<Float8::e4m3>(rounded[j] * scale_, rounded[j + 1] * scale_, narrowed + j);
        Pack<std::uint8_t, V> pack;
        SMSIM_UNROLL
        for (int j = 0; j < V; ++j) pack.at[j] = narrowed[j];
        store<std::uint8_t, V>(octets_ + at, pack);
    }
    // All threads of all blocks call it, last.
    template <class Thread>
    SMSIM_DEVICE void finish(const Thread& t, const CastAlong& cast) const {
        const float most = block_max(t, most_, t.template shared<float>());
        if (t.thread() == 0) cast.partials[t.block()] = most;
        if (t.block() != 0) return;
        for (std::int64_t i = t.blocks() + t.thread(); i < along_partials; i += t.threads())
            cast.partials[i] = 0;
    }

private:
    std::uint8_t* octets_;
    float scale_, most_ = 0;
};

inline constexpr std::size_t along_scratch = 32 * sizeof(float);

}  // namespace exec::cuda::kernel_body
