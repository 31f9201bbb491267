// Normalisation together with what comes before it or beside it, so that rows are read once.
//
// Bytes of device memory, for rows of n elements, s bytes each: an addition and a norm apart read and write
// 5 n s (two terms, the sum twice, the result), together 4 n s. The gradients of a norm apart read x and the
// result's gradient twice (5 n s with what is written), together once: 3 n s, and partial sums, two numbers
// of 4 bytes a column for each of at most 528 blocks.
#pragma once

#include "exec/cuda/body/norm.h"

namespace exec::cuda::kernel_body {

// sum = a + b, and the norm of that sum.
template <class T, int V, int packs, bool is_layer>
struct SumNorm {
    static constexpr bool is_cooperative = true;
    static constexpr int most_threads = 256;
    static constexpr const char* name = is_layer ? "sum_layer_norm" : "sum_rms_norm";
    bool is_short;
    std::int64_t rows;
    const T *a, *b;
    T* sum;
    NormOfRow<T, V, packs, is_layer> norm;

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        const Row<Thread> r(t, is_short);
        if (r.row >= rows) return;  // a whole warp
        const std::int64_t first = r.row * norm.width;
        norm(t, r, RowPart<T, V, packs>(a + first, b + first, sum + first, norm.width, r.lane, r.lanes));
    }
};

// Sums over the block of two numbers at once. `scratch`: 2 floats a warp, free again after the call.
template <class Thread>
SMSIM_DEVICE void block_sums(const Thread& t, float& x, float& y, float* scratch) {
    x = warp_sum(t, x);
    y = warp_sum(t, y);
    if (t.threads() == 32) return;
    if (t.thread() % 32 == 0) {
        scratch[t.thread() / 16] = x;
        scratch[t.thread() / 16 + 1] = y;
    }
    t.synchronize();
    x = y = 0;
    for (int w = 0; w < t.threads() / 32; ++w) {
        x += scratch[2 * w];
        y += scratch[2 * w + 1];
    }
    t.synchronize();
}

// What one thread has of a row; packs beyond its end stay as they are.
template <class T, int V, int packs>
SMSIM_DEVICE void load_row(const T* row, std::int64_t width, int lane, int lanes, Pack<T, V> (&into)[packs]) {
    each_pack<V, packs>(width, lane, lanes, [&](int p, std::int64_t c) { into[p] = load<T, V>(row + c); });
}

// All three gradients of a norm. A block goes through every blocks-th row; its threads keep their columns, so
// that sums over rows stay in registers. The next row is on its way while this one is added up.
template <class T, int V, int packs, bool is_layer>
struct NormGradients {
    static constexpr bool is_cooperative = true;
    static constexpr int most_threads = 512;
    static constexpr const char* name = is_layer ? "layer_norm_gradients" : "rms_norm_gradients";
    std::int64_t rows, width;
    const T* x;
    const float* statistics;
    Values scale;
    const T* dy;
    T* dx;
    const T* base;
    float* partials;  // [blocks][2 (rms norm: 1)][width]: of the scale, of the shift

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        const int lane = t.thread(), lanes = t.threads();
        float* scratch = t.template shared<float>();
        float scale_sums[packs][V] = {}, shift_sums[packs][V] = {};
        Pack<T, V> in[packs] = {}, gradient[packs] = {};
        load_row(x + t.block() * width, width, lane, lanes, in);
        load_row(dy + t.block() * width, width, lane, lanes, gradient);
        for (std::int64_t row = t.block(); row < rows; row += t.blocks()) {
            const std::int64_t next = row + t.blocks() < rows ? row + t.blocks() : row;
            Pack<T, V> next_in[packs] = {}, next_gradient[packs] = {};
            load_row(x + next * width, width, lane, lanes, next_in);
            load_row(dy + next * width, width, lane, lanes, next_gradient);
            const float mean = is_layer ? statistics[2 * row] : 0.0f,
                        reciprocal = statistics[is_layer ? 2 * row + 1 : row];
            float sum = 0, product = 0;
            each_pack<V, packs>(width, lane, lanes, [&](int p, std::int64_t c) {
                const Pack<T, V> a = in[p], d = gradient[p];
                float factors[V] = {};
                values_at<V, true>(scale, c, factors);
                for (int j = 0; j < V; ++j) {
                    const float own = to_float(d.at[j]), centred = to_float(a.at[j]) - mean,
                                g = own * factors[j];
                    if constexpr (is_layer) {
                        sum += g;
                        shift_sums[p][j] += own;
                    }
                    product += g * centred;
                    scale_sums[p][j] += own * centred * reciprocal;
                }
            });
            block_sums(t, sum, product, scratch);
            const float mean_gradient = sum / static_cast<float>(width),
                        mean_product = product / static_cast<float>(width) * reciprocal * reciprocal;
            each_pack<V, packs>(width, lane, lanes, [&](int p, std::int64_t c) {
                const Pack<T, V> a = in[p], d = gradient[p];
                float out[V], factors[V] = {};
                values_at<V, true>(scale, c, factors);
                for (int j = 0; j < V; ++j)
                    out[j] = reciprocal * (to_float(d.at[j]) * factors[j] - mean_gradient -
                                           (to_float(a.at[j]) - mean) * mean_product);
                put<T, V>(dx + row * width + c, out, base ? base + row * width + c : nullptr);
            });
            SMSIM_UNROLL
            for (int p = 0; p < packs; ++p) {
                in[p] = next_in[p];
                gradient[p] = next_gradient[p];
            }
        }
        constexpr int halves = is_layer ? 2 : 1;
        float* own = partials + t.block() * halves * width;
        each_pack<V, packs>(width, lane, lanes, [&](int p, std::int64_t c) {
            put<float, V>(own + c, scale_sums[p], false);
            if constexpr (is_layer) put<float, V>(own + width + c, shift_sums[p], false);
        });
    }
};

// Blocks of all gradients of a norm: two for each of the 132 multiprocessors of an H100 (NVIDIA H100 data
// sheet, SXM5), four where a row is the work of four warps at most; none has fewer than 16 rows.
inline constexpr std::int64_t wide_gradient_blocks = 264, narrow_gradient_blocks = 528;
inline std::int64_t gradient_blocks(std::int64_t rows, std::int64_t most) {
    constexpr std::int64_t least_rows = 16;
    return at_most(ceiling(rows, least_rows), most);
}

template <bool is_layer>
void sum_norm(Stream s, Type type, std::int64_t rows, std::int64_t width, float epsilon, const void* a,
              const void* b, void* sum, Values scale, Values shift, void* y, float* statistics) {
    with_type(type, [&](auto element) {
        using T = decltype(element);
        with_row_layout<T>(
            rows, width, are_aligned(16, a, b, sum, y, scale.data, shift.data),
            [&](auto v, auto packs, bool is_short, std::int64_t blocks, int threads, std::size_t shared) {
                launch(
                    s, blocks, threads, shared,
                    SumNorm<T, v(), packs(), is_layer>{is_short,
                                                       rows,
                                                       as<const T>(a),
                                                       as<const T>(b),
                                                       as<T>(sum),
                                                       {width, epsilon, scale, shift, as<T>(y), statistics}});
            });
    });
}
inline void add_and_norm(Stream s, Type type, bool is_layer, std::int64_t rows, std::int64_t width,
                         float epsilon, const void* a, const void* b, void* sum, Values scale, Values shift,
                         void* y, float* statistics) {
    if (is_layer) sum_norm<true>(s, type, rows, width, epsilon, a, b, sum, scale, shift, y, statistics);
    else sum_norm<false>(s, type, rows, width, epsilon, a, b, sum, scale, {}, y, statistics);
}

template <class T, int packs, bool is_layer>
void launch_gradients(Stream s, std::int64_t rows, std::int64_t width, const void* x, const float* statistics,
                      Values scale, const void* dy, void* dx, const void* base, Sums dscale, Sums dshift,
                      void* workspace) {
    constexpr int wide = 16 / sizeof(T);
    using Body = NormGradients<T, wide, packs, is_layer>;
    const std::int64_t threads = ceiling(ceiling(width, std::int64_t{wide} * packs), 32) * 32;
    const std::int64_t blocks =
        gradient_blocks(rows, threads <= 128 ? narrow_gradient_blocks : wide_gradient_blocks);
    auto* partials = as<float>(workspace);
    launch(s, blocks, static_cast<int>(threads), Body::most_threads / 16 * sizeof(float),
           Body{rows, width, as<const T>(x), statistics, scale, as<const T>(dy), as<T>(dx), as<const T>(base),
                partials});
    constexpr int halves = is_layer ? 2 : 1;
    launch(s, halves * ceiling(width, 32), AddPartials::most_threads,
           AddPartials::most_threads * sizeof(float),
           AddPartials{width, blocks, halves * width, partials, dscale, is_layer ? dshift : Sums{}});
}

template <bool is_layer>
void gradients_of_norm(Stream s, Type type, std::int64_t rows, std::int64_t width, const void* x,
                       const float* statistics, Values scale, const void* dy, void* dx, const void* base,
                       Sums dscale, Sums dshift, void* workspace) {
    with_type(type, [&](auto element) {
        using T = decltype(element);
        constexpr std::int64_t columns_of_a_pass = 512 * 16 / sizeof(T);
        const bool is_wide = width % (16 / sizeof(T)) == 0 && are_aligned(16, x, dy, dx, base, scale.data);
        const auto launch_with = [&]<int packs>() {
            launch_gradients<T, packs, is_layer>(s, rows, width, x, statistics, scale, dy, dx, base, dscale,
                                                 dshift, workspace);
        };
        if (is_wide && width <= columns_of_a_pass) return launch_with.template operator()<1>();
        if (is_wide && width <= 2 * columns_of_a_pass) return launch_with.template operator()<2>();
        norm_backward<is_layer>(s, type, rows, width, x, statistics, scale, dy, dx, base);
        norm_weights(s, type, is_layer, rows, width, x, statistics, dy, dscale, dshift, workspace);
    });
}
inline void norm_gradients(Stream s, Type type, bool is_layer, std::int64_t rows, std::int64_t width,
                           const void* x, const float* statistics, Values scale, const void* dy, void* dx,
                           const void* base, Sums dscale, Sums dshift, void* workspace) {
    if (is_layer)
        gradients_of_norm<true>(s, type, rows, width, x, statistics, scale, dy, dx, base, dscale, dshift,
                                workspace);
    else
        gradients_of_norm<false>(s, type, rows, width, x, statistics, scale, dy, dx, base, dscale, {},
                                 workspace);
}

inline void fill_norm(Kernels& table) {
    fill_norm_alone(table);
    table.add_and_norm = add_and_norm;
    table.norm_gradients = norm_gradients;
}

}  // namespace exec::cuda::kernel_body
