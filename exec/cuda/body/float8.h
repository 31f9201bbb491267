// Operands of products in fp8: a tensor's largest magnitude, then its octets under the scale that follows
// from it (exec/float8.h), as they are and transposed, since matrix units take fp8 with the common dimension
// of both operands contiguous only (cuBLAS documentation, cublasLtMatmul: "TN").
//
// A maximum has no order, so the scale is the same every time. One pass over the tensor finds it, one writes
// both copies; between them goes one number a block.
#pragma once

#include <type_traits>

#include "exec/cuda/body/octets.h"

namespace exec::cuda::kernel_body {

template <class T, int V>
struct LargestMagnitudes {
    static constexpr bool is_cooperative = true;
    static constexpr int most_threads = 256;
    static constexpr const char* name = "largest_magnitudes";
    std::int64_t count;
    const T* x;
    float* partials;

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        float most = 0;
        const auto take = [&](float value) {
            const float size = magnitude_of(value);
            most = size > most ? size : most;
        };
        const std::int64_t self = t.block() * t.threads() + t.thread(), stride = t.blocks() * t.threads(),
                           packs = count / V;
        SMSIM_UNROLL_4
        for (std::int64_t p = self; p < packs; p += stride) {
            float values[V];
            widen_from<T, V, true>(x + p * V, values);
            SMSIM_UNROLL
            for (int j = 0; j < V; ++j) take(values[j]);
        }
        if (packs * V + self < count) take(to_float(x[packs * V + self]));
        most = block_max(t, most, t.template shared<float>());
        if (t.thread() == 0) partials[t.block()] = most;
    }
};

// A block takes a square of the matrix: V = 16 elements of a row a thread, through shared memory to 16
// elements of a column.
template <class T, Float8 format, int V>
struct CastToFloat8 {
    static constexpr bool is_cooperative = true;
    static constexpr int most_threads = 256;
    static constexpr int side = 128,
                         pitch =
                             side +
                             1;  // octets that are read together, 16 rows apart, lie in banks of their own
    static constexpr std::size_t shared_bytes = 32 * sizeof(float) + std::size_t{side} * pitch;
    static constexpr const char* name = "cast_to_float8";
    static_assert(float8_partials <= most_threads);
    std::int64_t rows, columns;
    const T* x;
    const float* partials;
    int partial_count;
    float* unscale;
    std::uint8_t *plain, *turned;

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        float* scratch = t.template shared<float>();
        auto* square = reinterpret_cast<std::uint8_t*>(scratch + 32);
        const float scale = float8_scale(
            format, block_max(t, t.thread() < partial_count ? partials[t.thread()] : 0.0f, scratch));
        if (t.block() == 0 && t.thread() == 0) *unscale = 1.0f / scale;  // of a power of two, exactly
        const Divided tile = divide(t.block(), (columns + side - 1) / side);
        const std::int64_t first_row = tile.quotient * side, first_column = tile.remainder * side;
        const int square_rows = static_cast<int>(rows - first_row < side ? rows - first_row : side);
        const int square_columns =
            static_cast<int>(columns - first_column < side ? columns - first_column : side);
        SMSIM_UNROLL_4
        for (int i = t.thread(); i < side * (side / V); i += most_threads) {
            const int r = i / (side / V), c = i % (side / V) * V;
            if (r >= square_rows || c >= square_columns) continue;
            const std::int64_t at = (first_row + r) * columns + first_column + c;
            Pack<std::uint8_t, V> octets;
            if constexpr (V == 1) {
                std::uint8_t pair[2];
                narrow<format>(to_float(x[at]) * scale, 0.0f, pair);
                octets.at[0] = pair[0];
            } else {
                float values[V];
                widen_from<T, V, true>(x + at, values);
                SMSIM_UNROLL
                for (int j = 0; j < V; j += 2)
                    narrow<format>(values[j] * scale, values[j + 1] * scale, octets.at + j);
            }
            if (plain) store<std::uint8_t, V>(plain + at, octets);
            if (!turned) continue;
            SMSIM_UNROLL
            for (int j = 0; j < V; ++j) square[r * pitch + c + j] = octets.at[j];
        }
        if (!turned) return;
        t.synchronize();
        SMSIM_UNROLL_4
        for (int i = t.thread(); i < side * (side / V); i += most_threads) {
            const int c = i / (side / V), r = i % (side / V) * V;
            if (r >= square_rows || c >= square_columns) continue;
            Pack<std::uint8_t, V> octets;
            SMSIM_UNROLL
            for (int j = 0; j < V; ++j) octets.at[j] = square[(r + j) * pitch + c];
            store<std::uint8_t, V>(turned + (first_column + c) * rows + first_row + r, octets);
        }
    }
};

template <class T, Float8 format, int V>
struct ConfirmOctets {
    static constexpr bool is_cooperative = true;
    static constexpr int most_threads = 256;
    static constexpr const char* name = "confirm_octets";
    std::int64_t count;
    const T* x;
    CastAlong cast;
    float* unscale;

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        float most = 0;
        SMSIM_UNROLL_4
        for (int i = t.thread(); i < along_partials; i += most_threads) {
            const float other = cast.partials[i];
            most = other > most ? other : most;
        }
        const float scale = float8_scale(format, block_max(t, most, t.template shared<float>()));
        if (t.block() == 0 && t.thread() == 0) {
            *unscale = 1.0f / scale;  // of a power of two, exactly
            *cast.guess = scale;      // of the next time; nobody reads it in this launch
        }
        if (scale == *cast.guessed) return;
        const std::int64_t stride = t.blocks() * t.threads() * V;
        for (std::int64_t i = (t.block() * t.threads() + t.thread()) * V; i < count; i += stride) {
            Pack<std::uint8_t, V> octets;
            if constexpr (V == 1) {
                std::uint8_t pair[2];
                narrow<format>(to_float(x[i]) * scale, 0.0f, pair);
                octets.at[0] = pair[0];
            } else {
                float values[V];
                widen_from<T, V, true>(x + i, values);
                SMSIM_UNROLL
                for (int j = 0; j < V; j += 2)
                    narrow<format>(values[j] * scale, values[j + 1] * scale, octets.at + j);
            }
            store<std::uint8_t, V>(cast.octets + i, octets);
        }
    }
};

// One for every 8,192 elements, as long as that many multiprocessors are busy with them.
inline std::int64_t partials_of(std::int64_t count) { return at_most(ceiling(count, 8192), float8_partials); }

inline void largest_magnitudes(Stream s, Type type, std::int64_t count, const void* x, float* partials) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        constexpr int wide = 16 / sizeof(T);
        const auto* from = as<const T>(x);
        const std::int64_t blocks = partials_of(count);
        if (is_aligned(x, 16))
            launch(s, blocks, 256, 32 * sizeof(float), LargestMagnitudes<T, wide>{count, from, partials});
        else launch(s, blocks, 256, 32 * sizeof(float), LargestMagnitudes<T, 1>{count, from, partials});
    });
}

template <class T, Float8 format>
void cast_as(Stream s, std::int64_t rows, std::int64_t columns, const void* x, const float* partials,
             float* unscale, std::uint8_t* plain, std::uint8_t* turned) {
    const auto with_width = [&](auto width) {
        using Body = CastToFloat8<T, format, decltype(width)::value>;
        const std::int64_t squares = ceiling(rows, Body::side) * ceiling(columns, Body::side);
        launch(s, squares, Body::most_threads, Body::shared_bytes,
               Body{rows, columns, as<const T>(x), partials, static_cast<int>(partials_of(rows * columns)),
                    unscale, plain, turned});
    };
    constexpr int wide = 16;
    const bool is_wide =
        columns % wide == 0 && (!turned || rows % wide == 0) && are_aligned(16, x, plain, turned);
    if (is_wide) with_width(std::integral_constant<int, wide>{});
    else with_width(std::integral_constant<int, 1>{});
}

inline void cast_to_float8(Stream s, Type type, Float8 format, std::int64_t rows, std::int64_t columns,
                           const void* x, const float* partials, float* unscale, std::uint8_t* plain,
                           std::uint8_t* turned) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        if (format == Float8::e4m3)
            cast_as<T, Float8::e4m3>(s, rows, columns, x, partials, unscale, plain, turned);
        else cast_as<T, Float8::e5m2>(s, rows, columns, x, partials, unscale, plain, turned);
    });
}

// Two blocks for each of the 132 multiprocessors of an H100: they have little to do, as a rule.
inline void confirm_octets(Stream s, std::int64_t count, const void* x, const CastAlong& cast,
                           float* unscale) {
    using T = Bf16;
    constexpr std::int64_t most_blocks = 264;
    const auto launch_with = [&]<int V>() {
        using Body = ConfirmOctets<T, Float8::e4m3, V>;
        launch(s, at_most(ceiling(count, Body::most_threads * V), most_blocks), Body::most_threads,
               along_scratch, Body{count, as<const T>(x), cast, unscale});
    };
    constexpr int wide = 16;
    if (count % wide == 0 && are_aligned(16, x, cast.octets)) launch_with.template operator()<wide>();
    else launch_with.template operator()<1>();
}

inline void fill_float8(Kernels& table) {
    table.largest_magnitudes = largest_magnitudes;
    table.cast_to_float8 = cast_to_float8;
    table.confirm_octets = confirm_octets;
}

}  // namespace exec::cuda::kernel_body
