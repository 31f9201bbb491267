// Rows of tables.
#pragma once

#include "exec/cuda/body/elementwise.h"
#include "exec/cuda/body/table_sums.h"

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
        const Divided index = divide(i, width);
        const std::int64_t id = ids[index.quotient] - first;
        float out[V] = {};
        if (id >= 0 && id < table) values_at<V>(parameter, id * width + index.remainder, out);
        put<T, V>(y + i, out, false);
    }
};

template <class T>
struct Positions {
    static constexpr const char* name = "positions";
    std::int64_t width, tokens, first_row, offset;
    TokenRange token_range;
    const T* x;
    Values table;
    T* y;
    template <int V>
    SMSIM_DEVICE void at(std::int64_t i) const {
        const Divided index = divide(i, width);
        const std::int64_t position =
            position_of(token_range, divide(first_row + index.quotient, tokens).remainder) + offset;
        const Pack<T, V> in = load<T, V>(x + i);
        float out[V] = {};
        values_at<V>(table, position * width + index.remainder, out);
        for (int j = 0; j < V; ++j) out[j] += to_float(in.at[j]);
        put<T, V>(y + i, out, false);
    }
};

// One element of a token's row of the table a thread: the rows of all samples that read it.
template <class T>
struct PositionsWeight {
    static constexpr const char* name = "positions_weight";
    std::int64_t rows, width, tokens, first_row, offset;
    TokenRange token_range;
    const T* dy;
    Sums dtable;
    template <int V>
    SMSIM_DEVICE void at(std::int64_t i) const {
        const Divided index = divide(i, width);
        const std::int64_t begin = (index.quotient - first_row % tokens + tokens) % tokens;
        if (begin >= rows) return;
        float sum[V] = {};
        SMSIM_UNROLL_4
        for (std::int64_t r = begin; r < rows; r += tokens) {
            const Pack<T, V> gradient = load<T, V>(dy + r * width + index.remainder);
            for (int j = 0; j < V; ++j) sum[j] += to_float(gradient.at[j]);
        }
        for (int j = 0; j < V; ++j)
            add_at(dtable, (position_of(token_range, index.quotient) + offset) * width + index.remainder + j,
                   sum[j]);
    }
};

inline void embedding(Stream s, Type type, std::int64_t rows, std::int64_t width, std::int64_t first,
                      std::int64_t table, const std::int64_t* ids, Values parameter, void* y) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        each_in_rows<T>(s, rows, width, Embedding<T>{width, first, table, ids, parameter, as<T>(y)}, y);
    });
}

inline void positions(Stream s, Type type, std::int64_t rows, std::int64_t width, std::int64_t tokens,
                      const TokenRange& token_range, std::int64_t first_row, std::int64_t offset,
                      const void* x, Values table, void* y) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        each_in_rows<T>(
            s, rows, width,
            Positions<T>{width, tokens, first_row, offset, token_range, as<const T>(x), table, as<T>(y)}, x,
            y);
    });
}

inline void positions_weight(Stream s, Type type, std::int64_t rows, std::int64_t width, std::int64_t tokens,
                             const TokenRange& token_range, std::int64_t first_row, std::int64_t offset,
                             const void* dy, Sums dtable) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        each_in_rows<T>(
            s, tokens, width,
            PositionsWeight<T>{rows, width, tokens, first_row, offset, token_range, as<const T>(dy), dtable},
            dy);
    });
}

inline void fill_embedding(Kernels& table) {
    table.embedding = embedding;
    table.embedding_weight = embedding_weight;
    table.positions = positions;
    table.positions_weight = positions_weight;
}

}  // namespace exec::cuda::kernel_body
