// The products of all experts of a mixture in one launch, with their sizes in device memory: as many blocks
// are launched as the rows could need at most, and each reads which tile of which expert is its own.
//
// A block of 256 threads makes a tile of 128 x 128: two rows of four warps, 64 x 32 each. Operands go through
// shared memory in slices 64 bytes deep, the next one on its way in registers while one is multiplied. Every
// sum is of one thread, over the common dimension in order: nothing depends on which block runs when.
// Halves and tf32 go to the matrix units where there are such. Else a thread multiplies the same elements
// itself, in fp32.
#pragma once

#include <algorithm>
#include <vector>

#include "core/index/integers.h"
#include "exec/cuda/body/elementwise.h"
#include "exec/cuda/body/matrix_units.h"

namespace exec::cuda::kernel_body {

inline constexpr int tile_extent = expert_tile_rows, tile_threads = 256;
static_assert(tile_extent == 128 && tile_threads == 256, "eight warps of 64 x 32 make a tile");

// The sums of a thread: fragments of 16 x 8, four below and four beside one another.
using TileSums = float[4][4][4];

// Where a warp's part of the tile begins.
struct WarpPart {
    int row, column, lane;
};
template <class Thread>
SMSIM_DEVICE WarpPart warp_part(const Thread& t) {
    const int warp = t.thread() / 32;
    return {warp / 4 * 64, warp % 4 * 32, t.thread() % 32};
}

// What a tile needs of one operand: `extent` rows of the left one or columns of the right one (at most
// tile_extent), over the common dimension k. `runs_along_k`: neighbours in memory are neighbours in k.
template <class T, bool runs_along_k>
struct Stripe {
    static constexpr int wide = 16 / sizeof(T), depth = 64 / sizeof(T);
    // Some elements more than there are: rows that are read together then lie in different banks.
    static constexpr int row = runs_along_k ? depth + wide : tile_extent + 8;
    static constexpr bool is_tf32 = std::is_same_v<T, Tf32>;
    static constexpr int fragment_depth = is_tf32 ? 8 : 16;
    static constexpr int elements = row * (runs_along_k ? tile_extent : depth);
    static constexpr int vectors_per_row = (runs_along_k ? depth : tile_extent) / wide;
    static constexpr int vectors_per_thread = tile_extent * depth / wide / tile_threads;

    const T* data;
    std::int64_t leading;
    int extent;
    bool is_aligned;  // every row, at 16 bytes

    // Vector number v of the slice that begins at k, of `count`: zeros where nothing is.
    SMSIM_DEVICE Pack<T, wide> vector(int v, std::int64_t k, std::int64_t count) const {
        const int line = v / vectors_per_row, place = v % vectors_per_row * wide;
        const std::int64_t outer = runs_along_k ? line : k + line, inner = runs_along_k ? k + place : place;
        const std::int64_t outer_end = runs_along_k ? extent : count,
                           inner_end = runs_along_k ? count : extent;
        const std::int64_t left = outer < outer_end ? inner_end - inner : 0;
        const T* from = data + outer * leading + inner;
        if (is_aligned && left >= wide) return load<T, wide>(from);
        Pack<T, wide> pack{};
        SMSIM_UNROLL
        for (int j = 0; j < wide; ++j)
            if (j < left) pack.at[j] = from[j];
        return pack;
    }
    SMSIM_DEVICE static void keep(T* slice, int v, const Pack<T, wide>& pack) {
        T* to = slice + v / vectors_per_row * row + v % vectors_per_row * wide;
#if defined(__CUDA_ARCH__)
        // Said in words of the machine, as in store(): of some of these nvcc makes four stores.
        unsigned words[4];
        memcpy(words, &pack, sizeof words);
        const unsigned address = __cvta_generic_to_shared(to);
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words[0]), "r"(words[1]),
                     "r"(words[2]), "r"(words[3])
                     : "memory");
#else
        *reinterpret_cast<Pack<T, wide>*>(to) = pack;
#endif
    }
    SMSIM_DEVICE static float at(const T* slice, int place, int k) {
        return to_float(slice[runs_along_k ? place * row + k : k * row + place]);
    }
    // Of the left operand the fragment from (place, k); of the right one two, side by side.
    template <bool is_left, class Thread>
    SMSIM_DEVICE static void fragments(const Thread& t, const T* slice, int place, int k,
                                       std::uint32_t (&words)[4]) {
        const int lane = t.thread() % 32;
        if constexpr (is_tf32) {
            SMSIM_UNROLL
            for (int i = 0; i < 4; ++i) {
                const int second = i % 2, third = i / 2;
                words[i] = rounded_to_tf32(at(slice, place + lane / 4 + (is_left ? second : third) * 8,
                                              k + lane % 4 + (is_left ? third : second) * 4));
            }
            return;
        }
        const int second = lane / 8 % 2 * 8, third = lane / 16 * 8;
        place += is_left ? second : third;
        k += is_left ? third : second;
        const T* own =
            runs_along_k ? slice + (place + lane % 8) * row + k : slice + (k + lane % 8) * row + place;
        load_matrices<!runs_along_k>(t, own, words);
    }
};

// sums += the product of two slices in shared memory.
template <class Left, class Right, class T, class Thread>
SMSIM_DEVICE void multiply_slices(const Thread& t, const T* left, const T* right, TileSums& sums) {
    const WarpPart part = warp_part(t);
    if constexpr (has_matrix_units<T>(Thread{})) {
        SMSIM_UNROLL
        for (int k = 0; k < Left::depth; k += Left::fragment_depth) {
            std::uint32_t a[4][4], b[2][4];
            SMSIM_UNROLL
            for (int i = 0; i < 4; ++i) Left::template fragments<true>(t, left, part.row + 16 * i, k, a[i]);
            SMSIM_UNROLL
            for (int j = 0; j < 2; ++j)
                Right::template fragments<false>(t, right, part.column + 16 * j, k, b[j]);
            SMSIM_UNROLL
            for (int i = 0; i < 4; ++i) SMSIM_UNROLL
            for (int j = 0; j < 4; ++j)
                multiply_matrices<T>(t, sums[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
        }
    } else {
        const int row = part.row + part.lane / 4, column = part.column + part.lane % 4 * 2;
        SMSIM_UNROLL_2
        for (int k = 0; k < Left::depth; ++k) {
            float a[8], b[8];
            SMSIM_UNROLL
            for (int i = 0; i < 8; ++i) {
                a[i] = Left::at(left, row + 8 * i, k);
                b[i] = Right::at(right, column + i / 2 * 8 + i % 2, k);
            }
            SMSIM_UNROLL
            for (int i = 0; i < 8; ++i) SMSIM_UNROLL
            for (int j = 0; j < 8; ++j) sums[i / 2][j / 2][i % 2 * 2 + j % 2] += a[i] * b[j];
        }
    }
}

// Bytes of shared memory for two slices of both operands: one is read while the other is written.
template <class T, bool left_along_k, bool right_along_k>
constexpr std::size_t tile_memory() {
    return 2 * (Stripe<T, left_along_k>::elements + Stripe<T, right_along_k>::elements) * sizeof(T);
}

// sums += the product of two stripes over `count` of the common dimension. All threads of the block call it.
template <class T, bool left_along_k, bool right_along_k, class Thread>
SMSIM_DEVICE void multiply_stripes(const Thread& t, const Stripe<T, left_along_k>& left,
                                   const Stripe<T, right_along_k>& right, std::int64_t count,
                                   TileSums& sums) {
    using Left = Stripe<T, left_along_k>;
    using Right = Stripe<T, right_along_k>;
    constexpr int vectors = Left::vectors_per_thread;
    T* const memory = t.template shared<T>();
    Pack<T, Left::wide> next_left[vectors], next_right[vectors];
    const auto fetch = [&](std::int64_t k) {
        SMSIM_UNROLL
        for (int i = 0; i < vectors; ++i) {
            next_left[i] = left.vector(t.thread() + i * tile_threads, k, count);
            next_right[i] = right.vector(t.thread() + i * tile_threads, k, count);
        }
    };
    const auto slice = [&](int turn) { return memory + turn * (Left::elements + Right::elements); };
    const auto keep = [&](int turn) {
        SMSIM_UNROLL
        for (int i = 0; i < vectors; ++i) {
            Left::keep(slice(turn), t.thread() + i * tile_threads, next_left[i]);
            Right::keep(slice(turn) + Left::elements, t.thread() + i * tile_threads, next_right[i]);
        }
    };
    if (count <= 0) return;
    const WarpPart part = warp_part(t);
    const bool has_work = part.row < left.extent && part.column < right.extent;  // the whole warp
    fetch(0);
    keep(0);
    t.synchronize();
    int turn = 0;
    for (std::int64_t k = 0; k < count; k += Left::depth, turn ^= 1) {
        const bool goes_on = k + Left::depth < count;
        if (goes_on) fetch(k + Left::depth);
        if (has_work) multiply_slices<Left, Right>(t, slice(turn), slice(turn) + Left::elements, sums);
        if (goes_on) keep(turn ^ 1);
        t.synchronize();
    }
}

// The tile's sums into, or onto, `rows` x `columns` elements from `to`.
template <class T, class Thread>
SMSIM_DEVICE void write_tile(const Thread& t, const TileSums& sums, T* to, std::int64_t leading, int rows,
                             int columns, bool accumulates) {
    const WarpPart part = warp_part(t);
    const bool has_pairs = leading % 2 == 0 && reinterpret_cast<std::uintptr_t>(to) % sizeof(Pack<T, 2>) == 0;
    SMSIM_UNROLL
    for (int i = 0; i < 8; ++i) {
        const int row = part.row + 8 * i + part.lane / 4;
        if (row >= rows) continue;
        SMSIM_UNROLL
        for (int j = 0; j < 4; ++j) {
            const int column = part.column + 8 * j + part.lane % 4 * 2;
            const float pair[2] = {sums[i / 2][j][i % 2 * 2], sums[i / 2][j][i % 2 * 2 + 1]};
            T* at = to + row * leading + column;
            if (has_pairs && column + 1 < columns) {
                put<T, 2>(at, pair, accumulates);
                continue;
            }
            SMSIM_UNROLL
            for (int c = 0; c < 2; ++c)
                if (column + c < columns) add_to(at[c], pair[c], accumulates);
        }
    }
}

SMSIM_DEVICE int extent_of_tile(std::int64_t left) {
    int extent = tile_extent;
    if (left < extent) extent = left;
    return extent;
}

// c [rows, n] (+)= a [rows, k] times the weights of each row's expert: [n, k] with the common dimension last
// where it `transposes`, else [k, n].
template <class T, bool transposes>
struct ExpertProducts {
    static constexpr bool is_cooperative = true;
    static constexpr int most_threads = tile_threads, least_blocks = 2;
    static constexpr const char* name = transposes ? "expert_products" : "expert_input_gradients";
    static constexpr std::size_t shared = tile_memory<T, true, transposes>();
    ExpertBlocks blocks;
    std::int64_t n, k, column_tiles;
    const T *a, *weights;
    T* c;
    bool accumulates, a_is_aligned, weights_are_aligned;

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        const std::int32_t *first = blocks.table, *tiles = first + blocks.count + 1;
        if (t.block() >= tiles[blocks.count] * column_tiles) return;
        // The last block of rows whose tiles do not begin after this one: the others there are empty.
        std::int64_t own = 0, end = blocks.count;
        while (end - own > 1) {
            const std::int64_t middle = (own + end) / 2;
            (tiles[middle] * column_tiles <= t.block() ? own : end) = middle;
        }
        // Neighbours read the same weights: tiles of rows go first.
        const Divided place = divide(t.block() - tiles[own] * column_tiles, tiles[own + 1] - tiles[own]);
        const std::int64_t row = first[own] + place.remainder * tile_extent,
                           column = place.quotient * tile_extent;
        const int rows = extent_of_tile(first[own + 1] - row), columns = extent_of_tile(n - column);
        const T* weight = weights + own % blocks.experts * n * k;
        TileSums sums = {};
        multiply_stripes(t, Stripe<T, true>{a + row * k, k, rows, a_is_aligned},
                         Stripe<T, transposes>{weight + (transposes ? column * k : column),
                                               transposes ? k : n, columns, weights_are_aligned},
                         k, sums);
        write_tile(t, sums, c + row * n + column, n, rows, columns, accumulates);
    }
};

// Of every expert [m, n] (+)= the sum over its rows of a [rows, m] times b [rows, n]: the common dimension
// is the one whose size only the device knows.
template <class T>
struct ExpertWeightGradients {
    static constexpr bool is_cooperative = true;
    static constexpr int most_threads = tile_threads, least_blocks = 2;
    static constexpr const char* name = "expert_weight_gradients";
    static constexpr std::size_t shared = tile_memory<T, false, false>();
    ExpertBlocks blocks;
    std::int64_t m, n, row_tiles, column_tiles;
    const T *a, *b;
    Sums gradients;
    bool a_is_aligned, b_is_aligned;

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        const Divided expert = divide(t.block(), row_tiles * column_tiles),
                      place = divide(expert.remainder, row_tiles);
        const std::int64_t row = place.remainder * tile_extent, column = place.quotient * tile_extent;
        const int rows = extent_of_tile(m - row), columns = extent_of_tile(n - column);
        TileSums sums = {};
        for (std::int64_t own = expert.quotient; own < blocks.count; own += blocks.experts) {
            const std::int64_t first = blocks.table[own];
            multiply_stripes(t, Stripe<T, false>{a + first * m + row, m, rows, a_is_aligned},
                             Stripe<T, false>{b + first * n + column, n, columns, b_is_aligned},
                             blocks.table[own + 1] - first, sums);
        }
        const std::int64_t at = (expert.quotient * m + row) * n + column;
        const auto write = [&](auto* to) {
            write_tile(t, sums, to + at, n, rows, columns, gradients.accumulates);
        };
        switch (gradients.type) {
            case Type::fp32: write(as<float>(gradients.data)); break;
            case Type::bf16: write(as<Bf16>(gradients.data)); break;
            case Type::fp16: write(as<Fp16>(gradients.data)); break;
        }
    }
};

// Numbers that the host knows, as arguments of a launch: no memory of the host has to stay as it is.
struct WriteNumbers {
    static constexpr int most = 512;
    static constexpr const char* name = "write_numbers";
    std::int32_t* to;
    std::int32_t numbers[most];
    template <int V>
    SMSIM_DEVICE void at(std::int64_t i) const {
        to[i] = numbers[i];
    }
};

inline void known_expert_table(Stream s, const std::vector<std::int64_t>& rows, std::int32_t* table) {
    const std::size_t tiles = rows.size() + 1;
    std::vector<std::int32_t> all(2 * tiles);
    for (std::size_t b = 0; b < rows.size(); ++b) {
        all[b + 1] = all[b] + core::narrow<std::int32_t>(rows[b]);
        all[tiles + b + 1] = all[tiles + b] + core::narrow<std::int32_t>(ceiling(rows[b], tile_extent));
    }
    for (std::size_t begin = 0; begin < all.size(); begin += WriteNumbers::most) {
        const std::size_t count = std::min<std::size_t>(WriteNumbers::most, all.size() - begin);
        WriteNumbers launch_of{table + begin, {}};
        std::copy_n(all.begin() + begin, count, launch_of.numbers);
        each<1>(s, count, launch_of);
    }
}

template <class Call>
void with_product_type(Type type, bool uses_tf32, const Call& call) {
    if (uses_tf32) call(Tf32{});
    else with_type(type, call);
}

inline void expert_products(Stream s, Type type, bool uses_tf32, const ExpertBlocks& blocks, std::int64_t n,
                            std::int64_t k, const void* a, const void* weights, bool transposes, void* c,
                            bool accumulates) {
    // Each block of rows has one tile at most that is not full.
    const std::int64_t column_tiles = ceiling(n, tile_extent),
                       row_tiles = blocks.rows / tile_extent + at_most(blocks.count, blocks.rows);
    with_product_type(type, uses_tf32, [&](auto t) {
        using T = decltype(t);
        constexpr int wide = 16 / sizeof(T);
        const auto start = [&]<bool is_transposed>() {
            using Body = ExpertProducts<T, is_transposed>;
            launch(s, row_tiles * column_tiles, tile_threads, Body::shared,
                   Body{blocks, n, k, column_tiles, as<const T>(a), as<const T>(weights), as<T>(c),
                        accumulates, k % wide == 0 && are_aligned(16, a),
                        (is_transposed ? k : n) % wide == 0 && are_aligned(16, weights)});
        };
        if (transposes) start.template operator()<true>();
        else start.template operator()<false>();
    });
}

inline void expert_weight_gradients(Stream s, Type type, bool uses_tf32, const ExpertBlocks& blocks,
                                    std::int64_t m, std::int64_t n, const void* a, const void* b,
                                    Sums gradients) {
    const std::int64_t row_tiles = ceiling(m, tile_extent), column_tiles = ceiling(n, tile_extent);
    with_product_type(type, uses_tf32, [&](auto t) {
        using T = decltype(t);
        constexpr int wide = 16 / sizeof(T);
        using Body = ExpertWeightGradients<T>;
        launch(s, blocks.experts * row_tiles * column_tiles, tile_threads, Body::shared,
               Body{blocks, m, n, row_tiles, column_tiles, as<const T>(a), as<const T>(b), gradients,
                    m % wide == 0 && are_aligned(16, a), n % wide == 0 && are_aligned(16, b)});
    });
}

inline void fill_expert_products(Kernels& table) {
    table.known_expert_table = known_expert_table;
    table.expert_products = expert_products;
    table.expert_weight_gradients = expert_weight_gradients;
}

}  // namespace exec::cuda::kernel_body
