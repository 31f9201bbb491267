// Norms that write their result in fp8 too (octets.h).
#pragma once

#include "exec/cuda/body/norm_fused.h"
#include "exec/cuda/body/octets.h"

namespace exec::cuda::kernel_body {

// The norm of a, or of the sum of a and b, which it writes.
template <class T, int V, int packs, bool is_layer>
struct NormWithOctets {
    static constexpr bool is_cooperative = true;
    static constexpr int most_threads = 256;
    static constexpr const char* name = is_layer ? "layer_norm_with_octets" : "rms_norm_with_octets";
    bool is_short;
    std::int64_t rows;
    const T *a, *b;
    T* sum;
    NormOfRow<T, V, packs, is_layer> norm;
    CastAlong cast;

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        OctetsOfThread<T, V> octets(t, cast);
        Row<Thread> r(t, is_short);
        const std::int64_t stride = t.blocks() * (is_short ? rows_per_block : 1);
        for (; r.row < rows; r.row += stride) {  // a whole warp, or a whole block
            const std::int64_t first = r.row * norm.width;
            if (b)
                norm(t, r,
                     RowPart<T, V, packs>(a + first, b + first, sum + first, norm.width, r.lane, r.lanes),
                     octets);
            else norm(t, r, RowPart<T, V, packs>(a + first, norm.width, r.lane, r.lanes), octets);
        }
        octets.finish(t, cast);
    }
};

template <bool is_layer>
void norm_and_octets(Stream s, std::int64_t rows, std::int64_t width, float epsilon, const NormTerms& x,
                     Values scale, Values shift, void* y, float* statistics, const CastAlong& cast) {
    using T = Bf16;
    with_row_layout<T>(rows, width, are_aligned(16, x.a, x.b, x.sum, y, scale.data, shift.data),
                       [&](auto v, auto packs, bool is_short, std::int64_t blocks, int threads, std::size_t) {
                           launch(s, at_most(blocks, along_partials), threads, along_scratch,
                                  NormWithOctets<T, v(), packs(), is_layer>{
                                      is_short,
                                      rows,
                                      as<const T>(x.a),
                                      as<const T>(x.b),
                                      as<T>(x.sum),
                                      {width, epsilon, scale, shift, as<T>(y), statistics},
                                      cast});
                       });
}
inline void norm_with_octets(Stream s, bool is_layer, std::int64_t rows, std::int64_t width, float epsilon,
                             const NormTerms& x, Values scale, Values shift, void* y, float* statistics,
                             const CastAlong& cast) {
    if (is_layer) norm_and_octets<true>(s, rows, width, epsilon, x, scale, shift, y, statistics, cast);
    else norm_and_octets<false>(s, rows, width, epsilon, x, scale, {}, y, statistics, cast);
}

}  // namespace exec::cuda::kernel_body
