// Rows of tables.
#pragma once

#include "exec/cuda/body/elementwise.h"

namespace exec::cuda::kernel_body {

template <class T>
struct Embedding {
    static constexpr const char* name = "embedding";
    std::int64_t width, first, table;
    const std::int64_t* ids;
    Values parameter;
    T* y;
    template <int V>
    SMSIM_DEVICE void at(std::int64_t i) const {
        const Divided place = divide(i, width);
        const std::int64_t id = ids[place.quotient] - first;
        float out[V] = {};
        if (id >= 0 && id < table) values_at<V>(parameter, id * width + place.remainder, out);
        put<T, V>(y + i, out, false);
    }
};

// A block per row. The block of the first row with an id adds all rows with that id, in order; the blocks of the others end at once.
template <class T>
struct EmbeddingWeight {
    static constexpr bool is_cooperative = true;
    static constexpr int threads = 256;
    static constexpr int most_threads = threads;
    static constexpr const char* name = "embedding_weight";
    static constexpr int sums_per_thread = 4, rows_per_thread = 8, warps = threads / 32;
    // Matches of one scan, ascending; counts by eighth of the scan and warp; sums of the counts by warp, of two scans in turn.
    static constexpr std::size_t shared = (threads * rows_per_thread + rows_per_thread * warps + 2 * warps) * sizeof(int) + 32 * sizeof(float);
    std::int64_t rows, width, first, table;
    const std::int64_t* ids;
    const T* dy;
    Sums dtable;

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        int *matches = t.template shared<int>(), *counts = matches + threads * rows_per_thread, *totals = counts + rows_per_thread * warps;
        const std::int64_t own = t.block(), id = ids[own];
        if (id < first || id >= first + table) return;
        float is_repeated = 0;
SMSIM_UNROLL_4
        for (std::int64_t r = t.thread(); r < own; r += threads) is_repeated = ids[r] == id ? 1.0f : is_repeated;
        if (block_sum(t, is_repeated, reinterpret_cast<float*>(totals + 2 * warps)) > 0) return;

        const int warp = t.thread() / 32, lane = t.thread() % 32;
        int turn = 0;
        for (std::int64_t base = 0; base < width; base += threads * sums_per_thread) {
            float sum[sums_per_thread] = {};
            for (std::int64_t scan = own; scan < rows; scan += threads * rows_per_thread, turn ^= 1) {
                unsigned votes[rows_per_thread] = {};
SMSIM_UNROLL
                for (int j = 0; j < rows_per_thread; ++j) {
                    const std::int64_t r = scan + j * threads + t.thread();
                    votes[j] = t.ballot(r < rows && ids[r] == id);
                }
                if (lane == 0) {
                    int total = 0;
SMSIM_UNROLL
                    for (int j = 0; j < rows_per_thread; ++j) total += counts_of(counts, j, warp) = bits(votes[j]);
                    totals[turn * warps + warp] = total;
                }
                t.synchronize();
                int found = 0;
                for (int w = 0; w < warps; ++w) found += totals[turn * warps + w];
                // Nothing here: the next scan counts in the other half of `totals`, and nobody reads `counts`.
                if (found == 0) continue;
                int before = 0;
SMSIM_UNROLL
                for (int j = 0; j < rows_per_thread; ++j)
                    for (int w = 0; w < warps; ++w) {
                        if (w == warp && (votes[j] >> lane & 1u)) matches[before + bits(votes[j] & ((1u << lane) - 1u))] = j * threads + t.thread();
                        before += counts_of(counts, j, w);
                    }
                t.synchronize();
SMSIM_UNROLL_4
                for (int m = 0; m < found; ++m) {
                    const T* gradient = dy + (scan + matches[m]) * width + base;
                    for (int j = 0; j < sums_per_thread; ++j) {
                        const int c = j * threads + t.thread();
                        if (base + c < width) sum[j] += to_float(gradient[c]);
                    }
                }
                t.synchronize();
            }
            for (int j = 0; j < sums_per_thread; ++j) {
                const std::int64_t c = base + j * threads + t.thread();
                if (c < width) add_at(dtable, (id - first) * width + c, sum[j]);
            }
        }
    }

    SMSIM_DEVICE static int& counts_of(int* counts, int j, int warp) { return counts[j * warps + warp]; }
    SMSIM_DEVICE static int bits(unsigned x) {
#if defined(__CUDA_ARCH__)
        return __popc(x);
#else
        return __builtin_popcount(x);
#endif
    }
};

template <class T>
struct Positions {
    static constexpr const char* name = "positions";
    std::int64_t width, tokens, first_row, offset;
    const T* x;
    Values table;
    T* y;
    template <int V>
    SMSIM_DEVICE void at(std::int64_t i) const {
        const Divided place = divide(i, width);
        const std::int64_t position = divide(first_row + place.quotient, tokens).remainder + offset;
        const Pack<T, V> in = load<T, V>(x + i);
        float out[V] = {};
        values_at<V>(table, position * width + place.remainder, out);
        for (int j = 0; j < V; ++j) out[j] += to_float(in.at[j]);
        put<T, V>(y + i, out, false);
    }
};

// One element of the table a thread: the rows of all samples that read it.
template <class T>
struct PositionsWeight {
    static constexpr const char* name = "positions_weight";
    std::int64_t rows, width, tokens, first_row, offset;
    const T* dy;
    Sums dtable;
    template <int V>
    SMSIM_DEVICE void at(std::int64_t i) const {
        const Divided place = divide(i, width);
        const std::int64_t begin = (place.quotient - first_row % tokens + tokens) % tokens;
        if (begin >= rows) return;
        float sum[V] = {};
SMSIM_UNROLL_4
        for (std::int64_t r = begin; r < rows; r += tokens) {
            const Pack<T, V> gradient = load<T, V>(dy + r * width + place.remainder);
            for (int j = 0; j < V; ++j) sum[j] += to_float(gradient.at[j]);
        }
        for (int j = 0; j < V; ++j) add_at(dtable, (place.quotient + offset) * width + place.remainder + j, sum[j]);
    }
};

inline void embedding(Stream s, Type type, std::int64_t rows, std::int64_t width, std::int64_t first, std::int64_t table, const std::int64_t* ids,
                      Values parameter, void* y) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        each_in_rows<T>(s, rows, width, Embedding<T>{width, first, table, ids, parameter, static_cast<T*>(y)}, y);
    });
}

inline void embedding_weight(Stream s, Type type, std::int64_t rows, std::int64_t width, std::int64_t first, std::int64_t table, const std::int64_t* ids,
                             const void* dy, Sums dtable) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        launch(s, rows, EmbeddingWeight<T>::threads, EmbeddingWeight<T>::shared, EmbeddingWeight<T>{rows, width, first, table, ids, static_cast<const T*>(dy), dtable});
    });
}

inline void positions(Stream s, Type type, std::int64_t rows, std::int64_t width, std::int64_t tokens, std::int64_t first_row, std::int64_t offset,
                      const void* x, Values table, void* y) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        each_in_rows<T>(s, rows, width, Positions<T>{width, tokens, first_row, offset, static_cast<const T*>(x), table, static_cast<T*>(y)}, x, y);
    });
}

inline void positions_weight(Stream s, Type type, std::int64_t rows, std::int64_t width, std::int64_t tokens, std::int64_t first_row, std::int64_t offset,
                             const void* dy, Sums dtable) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        each_in_rows<T>(s, tokens, width, PositionsWeight<T>{rows, width, tokens, first_row, offset, static_cast<const T*>(dy), dtable}, dy);
    });
}

inline void fill_embedding(Kernels& table) {
    table.embedding = embedding;
    table.embedding_weight = embedding_weight;
    table.positions = positions;
    table.positions_weight = positions_weight;
}

}  // namespace exec::cuda::kernel_body
