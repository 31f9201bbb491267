// Normalisation, and sums over rows.
//
// A row is the work of a warp when it is short, of a block when it is long, and stays in registers: device
// memory sees every element once, and all of a row's loads are under way together. Sums over rows go in two
// launches, chunks of rows first: the same bits every time, without atomic additions.
#pragma once

#include <type_traits>

#include "exec/cuda/body/launch.h"

namespace exec::cuda::kernel_body {

inline constexpr int rows_per_block = 4;  // where a warp takes a row
inline constexpr int long_row_threads = 256;

// Threads `lane` of `lanes` share `row`; sum() is over them.
template <class Thread>
struct Row {
    std::int64_t row;
    int lane, lanes;
    float* scratch;

    SMSIM_DEVICE Row(const Thread& t, bool is_short) {
        row = is_short ? t.block() * rows_per_block + t.thread() / 32 : t.block();
        lane = is_short ? t.thread() % 32 : t.thread();
        lanes = is_short ? 32 : t.threads();
        scratch = t.template shared<float>();
    }
    SMSIM_DEVICE float sum(const Thread& t, float x) const {
        return lanes == 32 ? warp_sum(t, x) : block_sum(t, x, scratch);
    }
};

// What one thread has of a row: `packs` packs in registers, or, with packs = 0 (rows too long for that, or
// not aligned), read again from the cache each time.
template <class T, int V, int packs>
struct RowPart {
    const T* from;
    Pack<T, V> kept[packs > 0 ? packs : 1];

    SMSIM_DEVICE RowPart(const T* row, std::int64_t width, int lane, int lanes) : from(row) {
        if constexpr (packs > 0) {
            SMSIM_UNROLL
            for (int p = 0; p < packs; ++p)
                if (const std::int64_t c = column_at(p, lane, lanes); c < width)
                    kept[p] = load<T, V>(row + c);
        }
    }
    // The row `a` + `b`, rounded as it is written to `sum`.
    SMSIM_DEVICE RowPart(const T* a, const T* b, T* sum, std::int64_t width, int lane, int lanes)
        : from(sum) {
        const auto add_at = [&](std::int64_t c) {
            const Pack<T, V> left = load<T, V>(a + c), right = load<T, V>(b + c);
            Pack<T, V> both;
            for (int j = 0; j < V; ++j)
                both.at[j] = from_float<T>(to_float(left.at[j]) + to_float(right.at[j]));
            store<T, V>(sum + c, both);
            return both;
        };
        if constexpr (packs > 0) {
            SMSIM_UNROLL
            for (int p = 0; p < packs; ++p)
                if (const std::int64_t c = column_at(p, lane, lanes); c < width) kept[p] = add_at(c);
        } else {
            for (std::int64_t c = std::int64_t{lane} * V; c < width; c += std::int64_t{lanes} * V) add_at(c);
        }
    }
    SMSIM_DEVICE static std::int64_t column_at(int p, int lane, int lanes) {
        return (std::int64_t{p} * lanes + lane) * V;
    }
    SMSIM_DEVICE Pack<T, V> at(int p, std::int64_t c) const {
        if constexpr (packs > 0) return kept[p];
        else return load<T, V>(from + c);
    }
    // What was computed from the packs is computed anew from here on: fp32 copies of a row of halves would
    // take twice the registers.
    SMSIM_DEVICE void forget_copies() {
#if defined(__CUDA_ARCH__)
        if constexpr (packs > 0 && sizeof(T) == 2) {
            SMSIM_UNROLL
            for (int p = 0; p < packs; ++p) {
                unsigned words[V / 2];
                memcpy(words, &kept[p], sizeof words);
                SMSIM_UNROLL
                for (int w = 0; w < V / 2; ++w) asm volatile("" : "+r"(words[w]));
                memcpy(&kept[p], words, sizeof words);
            }
        }
#endif
    }
};
// visit(pack's number, first column) for all that a thread has of a row.
template <int V, int packs, class Visit>
SMSIM_DEVICE void each_pack(std::int64_t width, int lane, int lanes, const Visit& visit) {
    if constexpr (packs > 0) {
        SMSIM_UNROLL
        for (int p = 0; p < packs; ++p)
            if (const std::int64_t c = (std::int64_t{p} * lanes + lane) * V; c < width) visit(p, c);
    } else {
        for (std::int64_t c = std::int64_t{lane} * V; c < width; c += std::int64_t{lanes} * V) visit(0, c);
    }
}

struct NothingAlong {
    template <int V>
    SMSIM_DEVICE void operator()(std::int64_t, const float (&)[V]) const {}
};

// A layer norm, or an rms norm (no mean, no shift), of rows that threads have parts of. `along` is shown what
// is written.
template <class T, int V, int packs, bool is_layer>
struct NormOfRow {
    std::int64_t width;
    float epsilon;
    Values scale, shift;
    T* y;
    float* statistics;

    template <class Thread, class Along = NothingAlong>
    SMSIM_DEVICE void operator()(const Thread& t, const Row<Thread>& r, const RowPart<T, V, packs>& in,
                                 Along&& along = {}) const {
        float mean = 0;
        if constexpr (is_layer) {
            float sum = 0;
            each_pack<V, packs>(width, r.lane, r.lanes, [&](int p, std::int64_t c) {
                const Pack<T, V> pack = in.at(p, c);
                for (int j = 0; j < V; ++j) sum += to_float(pack.at[j]);
            });
            mean = r.sum(t, sum) / static_cast<float>(width);
        }
        float squares = 0;
        each_pack<V, packs>(width, r.lane, r.lanes, [&](int p, std::int64_t c) {
            const Pack<T, V> pack = in.at(p, c);
            for (int j = 0; j < V; ++j) {
                const float centred = to_float(pack.at[j]) - mean;
                squares += centred * centred;
            }
        });
        const float reciprocal = 1.0f / sqrtf(r.sum(t, squares) / static_cast<float>(width) + epsilon);
        each_pack<V, packs>(width, r.lane, r.lanes, [&](int p, std::int64_t c) {
            const Pack<T, V> pack = in.at(p, c);
            float out[V], factors[V] = {}, offsets[V] = {};
            values_at<V, true>(scale, c, factors);
            if (shift.data) values_at<V, true>(shift, c, offsets);
            for (int j = 0; j < V; ++j)
                out[j] = (to_float(pack.at[j]) - mean) * reciprocal * factors[j] + offsets[j];
            put<T, V>(y + r.row * width + c, out, false);
            along(r.row * width + c, out);
        });
        if (r.lane == 0) {
            if constexpr (is_layer) statistics[2 * r.row] = mean;
            statistics[is_layer ? 2 * r.row + 1 : r.row] = reciprocal;
        }
    }
};

template <class T, int V, int packs, bool is_layer>
struct Norm {
    static constexpr bool is_cooperative = true;
    static constexpr int most_threads = 256;
    static constexpr const char* name = is_layer ? "layer_norm" : "rms_norm";
    bool is_short;
    std::int64_t rows;
    const T* x;
    NormOfRow<T, V, packs, is_layer> norm;

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        const Row<Thread> r(t, is_short);
        if (r.row >= rows) return;  // a whole warp
        norm(t, r, RowPart<T, V, packs>(x + r.row * norm.width, norm.width, r.lane, r.lanes));
    }
};

template <class T, int V, int packs, bool is_layer>
struct NormBackward {
    static constexpr bool is_cooperative = true;
    static constexpr int most_threads = 256;
    static constexpr int least_blocks = packs == 8 ? 2 : 3;
    static constexpr const char* name = is_layer ? "layer_norm_backward" : "rms_norm_backward";
    bool is_short;
    std::int64_t rows, width;
    const T* x;
    const float* statistics;
    Values scale;
    const T* dy;
    T* dx;
    const T* base;

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        const Row<Thread> r(t, is_short);
        if (r.row >= rows) return;
        RowPart<T, V, packs> in(x + r.row * width, width, r.lane, r.lanes),
            gradient(dy + r.row * width, width, r.lane, r.lanes);
        const float mean = is_layer ? statistics[2 * r.row] : 0.0f,
                    reciprocal = statistics[is_layer ? 2 * r.row + 1 : r.row];
        float sum = 0, product = 0;
        each_pack<V, packs>(width, r.lane, r.lanes, [&](int p, std::int64_t c) {
            const Pack<T, V> a = in.at(p, c), d = gradient.at(p, c);
            float factors[V] = {};
            values_at<V, true>(scale, c, factors);
            for (int j = 0; j < V; ++j) {
                const float g = to_float(d.at[j]) * factors[j];
                if constexpr (is_layer) sum += g;
                product += g * (to_float(a.at[j]) - mean);
            }
        });
        in.forget_copies();
        gradient.forget_copies();
        const float mean_gradient = is_layer ? r.sum(t, sum) / static_cast<float>(width) : 0.0f;
        const float mean_product = r.sum(t, product) / static_cast<float>(width) * reciprocal * reciprocal;
        each_pack<V, packs>(width, r.lane, r.lanes, [&](int p, std::int64_t c) {
            const Pack<T, V> a = in.at(p, c), d = gradient.at(p, c);
            float out[V], factors[V] = {};
            values_at<V, true>(scale, c, factors);
            for (int j = 0; j < V; ++j)
                out[j] = reciprocal * (to_float(d.at[j]) * factors[j] - mean_gradient -
                                       (to_float(a.at[j]) - mean) * mean_product);
            put<T, V>(dx + r.row * width + c, out, base ? base + r.row * width + c : nullptr);
        });
    }
};

// Sums over a chunk of rows: a warp takes 32 V neighbouring columns of a row, eight warps every eighth row.
// partials[chunk][2][columns] (the product with the normalised row first, the plain sum second) or
// [chunk][columns].
template <class T, int V, bool has_product, bool is_layer>
struct ColumnPartials {
    static constexpr bool is_cooperative = true;
    static constexpr int most_threads = 256;
    static constexpr const char* name = "column_partials";
    static constexpr int columns_per_block = 32 * V, rows_at_once = 8;
    std::int64_t rows, columns, rows_per_chunk, column_blocks;
    const T* x;
    const float* statistics;
    const T* dy;
    float* partials;

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        float* scratch = t.template shared<float>();  // [rows at once][columns of the block]
        const std::int64_t chunk = t.block() / column_blocks,
                           first = t.block() % column_blocks * columns_per_block;
        const int part = t.thread() / 32, lane = t.thread() % 32;
        const std::int64_t column = first + lane * V;
        const std::int64_t begin = chunk * rows_per_chunk,
                           end = begin + rows_per_chunk < rows ? begin + rows_per_chunk : rows;
        float sum[V] = {}, product[V] = {};
        if (column < columns) {
            SMSIM_UNROLL_4
            for (std::int64_t r = begin + part; r < end; r += rows_at_once) {
                const Pack<T, V> d = load<T, V>(dy + r * columns + column);
                for (int j = 0; j < V; ++j) sum[j] += to_float(d.at[j]);
                if constexpr (has_product) {
                    const float mean = is_layer ? statistics[2 * r] : 0.0f,
                                reciprocal = statistics[is_layer ? 2 * r + 1 : r];
                    const Pack<T, V> a = load<T, V>(x + r * columns + column);
                    for (int j = 0; j < V; ++j)
                        product[j] += to_float(d.at[j]) * (to_float(a.at[j]) - mean) * reciprocal;
                }
            }
        }
        if constexpr (has_product) {
            add_parts(t, scratch, product, part, lane, first, partials + chunk * 2 * columns);
            t.synchronize();
        }
        add_parts(t, scratch, sum, part, lane, first,
                  partials + (has_product ? chunk * 2 + 1 : chunk) * columns);
    }

    // What the eight warps have, added up by all threads.
    template <class Thread>
    SMSIM_DEVICE void add_parts(const Thread& t, float* scratch, const float (&own)[V], int part, int lane,
                                std::int64_t first, float* result) const {
        for (int j = 0; j < V; ++j)
            scratch[part * columns_per_block + lane + 32 * j] =
                own[j];  // neighbouring lanes in neighbouring banks
        t.synchronize();
        for (int slot = t.thread(); slot < columns_per_block; slot += t.threads()) {
            const std::int64_t column = first + slot % 32 * V + slot / 32;
            float total = 0;
            for (int p = 0; p < rows_at_once; ++p) total += scratch[p * columns_per_block + slot];
            if (column < columns) result[column] = total;
        }
    }
};

// 32 columns a block; 32 warps take every 32nd chunk: what takes as long as a few loads one after the other
// should not take many. The first and, where there are twice as many partial sums, the second half of them.
struct AddPartials {
    static constexpr bool is_cooperative = true;
    static constexpr int warps = 32;
    static constexpr int most_threads = 32 * warps;
    static constexpr const char* name = "add_partials";
    std::int64_t columns, chunks, stride;
    const float* partials;
    Sums first, second;  // null data: not wanted

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        float* scratch = t.template shared<float>();  // [warps][32]
        const std::int64_t blocks = (columns + 31) / 32;
        const bool is_second = t.block() >= blocks;
        const Sums& sums = is_second ? second : first;
        if (!sums.data) return;
        const std::int64_t column = (t.block() - (is_second ? blocks : 0)) * 32 + t.thread() % 32;
        const float* own = partials + (is_second ? columns : 0) + column;
        float total = 0;
        if (column < columns) {
            SMSIM_UNROLL_4
            for (std::int64_t chunk = t.thread() / 32; chunk < chunks; chunk += warps)
                total += own[chunk * stride];
        }
        scratch[t.thread()] = total;
        t.synchronize();
        if (t.thread() >= 32 || column >= columns) return;
        for (int part = 1; part < warps; ++part) total += scratch[part * 32 + t.thread()];
        add_at(sums, column, total);
    }
};

// Chunks of rows: so many that `wanted_blocks` blocks of 128 columns each keep every multiprocessor busy, but
// none of fewer than 32 rows, and no more than 256, which take no time to add up.
inline std::int64_t row_chunks(std::int64_t rows, std::int64_t columns) {
    constexpr std::int64_t wanted_blocks = 1024, columns_per_block = 128, least_rows = 32, most_chunks = 256;
    return at_most(
        at_most(ceiling(rows, least_rows), ceiling(wanted_blocks, ceiling(columns, columns_per_block))),
        most_chunks);
}

// Calls with constants (elements of a pack, packs of a thread) and whether a warp takes a row, so that every
// thread has work and a row fits into registers.
template <class T, class Call>
void with_row_layout(std::int64_t rows, std::int64_t width, bool is_aligned, const Call& call) {
    constexpr int wide = 16 / sizeof(T);
    const auto with = [&]<int V, int packs>(bool is_short) {
        call(std::integral_constant<int, V>{}, std::integral_constant<int, packs>{}, is_short,
             is_short ? ceiling(rows, rows_per_block) : rows,
             is_short ? 32 * rows_per_block : long_row_threads,
             is_short ? std::size_t{0} : 32 * sizeof(float));
    };
    if (!is_aligned || width % wide != 0) with.template operator()<1, 0>(width <= 1024);
    else if (width <= 32 * wide * 4) with.template operator()<wide, 4>(true);
    else if (width <= 32 * wide * 8) with.template operator()<wide, 8>(true);
    else if (width <= long_row_threads * wide * 4) with.template operator()<wide, 4>(false);
    else with.template operator()<wide, 0>(false);
}

template <bool is_layer>
void norm(Stream s, Type type, std::int64_t rows, std::int64_t width, float epsilon, const void* x,
          Values scale, Values shift, void* y, float* statistics) {
    with_type(type, [&](auto element) {
        using T = decltype(element);
        with_row_layout<T>(
            rows, width, are_aligned(16, x, y, scale.data, shift.data),
            [&](auto v, auto packs, bool is_short, std::int64_t blocks, int threads, std::size_t shared) {
                launch(s, blocks, threads, shared,
                       Norm<T, v(), packs(), is_layer>{is_short,
                                                       rows,
                                                       as<const T>(x),
                                                       {width, epsilon, scale, shift, as<T>(y), statistics}});
            });
    });
}

inline void layer_norm(Stream s, Type type, std::int64_t rows, std::int64_t width, float epsilon,
                       const void* x, Values scale, Values shift, void* y, float* statistics) {
    norm<true>(s, type, rows, width, epsilon, x, scale, shift, y, statistics);
}
inline void rms_norm(Stream s, Type type, std::int64_t rows, std::int64_t width, float epsilon, const void* x,
                     Values scale, void* y, float* statistics) {
    norm<false>(s, type, rows, width, epsilon, x, scale, {}, y, statistics);
}

template <bool is_layer>
void norm_backward(Stream s, Type type, std::int64_t rows, std::int64_t width, const void* x,
                   const float* statistics, Values scale, const void* dy, void* dx, const void* base) {
    with_type(type, [&](auto element) {
        using T = decltype(element);
        with_row_layout<T>(
            rows, width, are_aligned(16, x, dy, dx, base, scale.data),
            [&](auto v, auto packs, bool is_short, std::int64_t blocks, int threads, std::size_t shared) {
                launch(s, blocks, threads, shared,
                       NormBackward<T, v(), packs(), is_layer>{is_short, rows, width, as<const T>(x),
                                                               statistics, scale, as<const T>(dy), as<T>(dx),
                                                               as<const T>(base)});
            });
    });
}
inline void layer_norm_backward(Stream s, Type type, std::int64_t rows, std::int64_t width, const void* x,
                                const float* statistics, Values scale, const void* dy, void* dx,
                                const void* base) {
    norm_backward<true>(s, type, rows, width, x, statistics, scale, dy, dx, base);
}
inline void rms_norm_backward(Stream s, Type type, std::int64_t rows, std::int64_t width, const void* x,
                              const float* statistics, Values scale, const void* dy, void* dx,
                              const void* base) {
    norm_backward<false>(s, type, rows, width, x, statistics, scale, dy, dx, base);
}

template <class T, int V, bool has_product, bool is_layer>
void column_partials(Stream s, std::int64_t rows, std::int64_t columns, std::int64_t chunks, const void* x,
                     const float* statistics, const void* dy, float* partials) {
    using Body = ColumnPartials<T, V, has_product, is_layer>;
    const std::int64_t column_blocks = ceiling(columns, Body::columns_per_block);
    launch(s, chunks * column_blocks, 256, sizeof(float) * Body::rows_at_once * Body::columns_per_block,
           Body{rows, columns, ceiling(rows, chunks), column_blocks, as<const T>(x), statistics,
                as<const T>(dy), partials});
}

template <bool has_product, bool is_layer>
void sum_columns(Stream s, Type type, std::int64_t rows, std::int64_t columns, const void* x,
                 const float* statistics, const void* dy, Sums products, Sums sums, void* workspace) {
    const std::int64_t chunks = row_chunks(rows, columns);
    auto* partials = as<float>(workspace);
    with_type(type, [&](auto t) {
        using T = decltype(t);
        constexpr int wide = 16 / sizeof(T);
        if (columns % wide == 0 && are_aligned(16, x, dy))
            column_partials<T, wide, has_product, is_layer>(s, rows, columns, chunks, x, statistics, dy,
                                                            partials);
        else
            column_partials<T, 1, has_product, is_layer>(s, rows, columns, chunks, x, statistics, dy,
                                                         partials);
    });
    constexpr int halves = has_product ? 2 : 1;
    launch(s, halves * ceiling(columns, 32), AddPartials::most_threads,
           AddPartials::most_threads * sizeof(float),
           AddPartials{columns, chunks, halves * columns, partials, has_product ? products : sums,
                       has_product ? sums : Sums{}});
}

inline void norm_weights(Stream s, Type type, bool is_layer, std::int64_t rows, std::int64_t width,
                         const void* x, const float* statistics, const void* dy, Sums dscale, Sums dshift,
                         void* workspace) {
    if (is_layer) sum_columns<true, true>(s, type, rows, width, x, statistics, dy, dscale, dshift, workspace);
    else sum_columns<true, false>(s, type, rows, width, x, statistics, dy, dscale, dshift, workspace);
}
inline void column_sums(Stream s, Type type, std::int64_t rows, std::int64_t columns, const void* x, Sums sum,
                        void* workspace) {
    sum_columns<false, false>(s, type, rows, columns, nullptr, nullptr, x, {}, sum, workspace);
}

inline void fill_norm_alone(Kernels& table) {
    table.layer_norm = layer_norm;
    table.layer_norm_backward = layer_norm_backward;
    table.rms_norm = rms_norm;
    table.rms_norm_backward = rms_norm_backward;
    table.norm_weights = norm_weights;
    table.column_sums = column_sums;
}

}  // namespace exec::cuda::kernel_body
