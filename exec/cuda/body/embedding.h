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
    static constexpr int most_threads = 256;
    static constexpr const char* name = "embedding_weight";
    static constexpr int sums_per_thread = 4;
    std::int64_t rows, width, first, table;
    const std::int64_t* ids;
    const T* dy;
    Sums dtable;

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        int* matches = t.template shared<int>();  // rows of one scan that have the id, ascending; then one count a warp
        int* counts = matches + t.threads();
        const std::int64_t own = t.block(), id = ids[own];
        if (id < first || id >= first + table) return;
        float is_repeated = 0;
        for (std::int64_t r = t.thread(); r < own; r += t.threads())
            if (ids[r] == id) is_repeated = 1;
        if (block_sum(t, is_repeated, reinterpret_cast<float*>(counts)) > 0) return;

        const std::int64_t slice = static_cast<std::int64_t>(t.threads()) * sums_per_thread;
        for (std::int64_t base = 0; base < width; base += slice) {
            float sum[sums_per_thread] = {};
            for (std::int64_t scan = own; scan < rows; scan += t.threads()) {
                const std::int64_t r = scan + t.thread();
                const bool is_match = r < rows && ids[r] == id;
                const unsigned votes = t.ballot(is_match);
                const int warp = t.thread() / 32, lane = t.thread() % 32;
                if (lane == 0) counts[warp] = bits(votes);
                t.synchronize();
                int place = bits(votes & ((1u << lane) - 1u)), found = 0;
                for (int w = 0; w < t.threads() / 32; ++w) {
                    if (w < warp) place += counts[w];
                    found += counts[w];
                }
                if (is_match) matches[place] = static_cast<int>(r - scan);
                t.synchronize();
SMSIM_UNROLL_4
                for (int m = 0; m < found; ++m) {
                    const T* gradient = dy + (scan + matches[m]) * width + base;
                    for (int j = 0; j < sums_per_thread; ++j) {
                        const std::int64_t c = static_cast<std::int64_t>(j) * t.threads() + t.thread();
                        if (base + c < width) sum[j] += to_float(gradient[c]);
                    }
                }
                t.synchronize();
            }
            for (int j = 0; j < sums_per_thread; ++j) {
                const std::int64_t c = base + static_cast<std::int64_t>(j) * t.threads() + t.thread();
                if (c < width) add_at(dtable, (id - first) * width + c, sum[j]);
            }
        }
    }

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
        const std::int64_t position = i / width, begin = (position - first_row % tokens + tokens) % tokens;
        for (int j = 0; j < V; ++j) {
            float sum = 0;
            for (std::int64_t r = begin; r < rows; r += tokens) sum += to_float(dy[r * width + i % width + j]);
            if (begin < rows) add_at(dtable, (position + offset) * width + i % width + j, sum);
        }
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
        constexpr int threads = 256;
        launch(s, rows, threads, (threads + 32) * sizeof(int), EmbeddingWeight<T>{rows, width, first, table, ids, static_cast<const T*>(dy), dtable});
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
        each<1>(s, tokens * width, PositionsWeight<T>{rows, width, tokens, first_row, offset, static_cast<const T*>(dy), dtable});
    });
}

inline void fill_embedding(Kernels& table) {
    table.embedding = embedding;
    table.embedding_weight = embedding_weight;
    table.positions = positions;
    table.positions_weight = positions_weight;
}

}  // namespace exec::cuda::kernel_body
