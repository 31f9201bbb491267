// Gated activations that write their result in fp8 too (octets.h).
#pragma once

#include "exec/cuda/body/elementwise.h"
#include "exec/cuda/body/octets.h"

namespace exec::cuda::kernel_body {

template <class T, int V>
struct GatedWithOctets {
    static constexpr bool is_cooperative = true;
    static constexpr int most_threads = 256;
    static constexpr const char* name = "gated_with_octets";
    std::int64_t count;
    Gated<T> gated;
    CastAlong cast;

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        OctetsOfThread<T, V> octets(t, cast);
        const std::int64_t stride = t.blocks() * t.threads() * V;
        for (std::int64_t i = (t.block() * t.threads() + t.thread()) * V; i < count; i += stride) {
            float out[V] = {};
            gated.template values<V>(i, out);
            put<T, V>(gated.y + i, out, false);
            octets(i, out);
        }
        octets.finish(t, cast);
    }
};

inline void gated_with_octets(Stream s, Unary kind, std::int64_t rows, std::int64_t width, const void* x,
                              void* y, const CastAlong& cast) {
    using T = Bf16;
    const Gated<T> gated{kind, width, as<const T>(x), as<T>(y)};
    const auto launch_with = [&]<int V>() {
        using Body = GatedWithOctets<T, V>;
        launch(s, at_most(ceiling(rows * width, Body::most_threads * V), along_partials), Body::most_threads,
               along_scratch, Body{rows * width, gated, cast});
    };
    constexpr int wide = 16 / sizeof(T);
    if (width % wide == 0 && are_aligned(16, x, y)) launch_with.template operator()<wide>();
    else launch_with.template operator()<1>();
}

}  // namespace exec::cuda::kernel_body
