// One element at a time, 16 bytes a thread.
#pragma once

#include <type_traits>

#include "exec/cuda/body/launch.h"

namespace exec::cuda::kernel_body {

// Calls f.at<V>(i) for packs of V and f.at<1>(i) for what is left.
template <class Function, int V>
struct Elementwise {
    static constexpr bool is_cooperative = false;
    static constexpr int most_threads = 256;
    static constexpr const char* name = Function::name;
    Function f;
    std::int64_t count;

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        const std::int64_t self = t.block() * t.threads() + t.thread(), stride = t.blocks() * t.threads(),
                           packs = count / V;
        for (std::int64_t p = self; p < packs; p += stride) f.template at<V>(p * V);
        if (packs * V + self < count) f.template at<1>(packs * V + self);
    }
};

template <int V, class Function>
void each(Stream stream, std::int64_t count, const Function& f) {
    // Enough blocks to fill any GPU several times over; the loop in the kernel takes the rest.
    const std::int64_t blocks = at_most(ceiling(ceiling(count, V), 256), 8192);
    launch(stream, blocks, 256, 0, Elementwise<Function, V>{f, count});
}
template <class T, class Function, class... Pointers>
void each_of(Stream stream, std::int64_t count, const Function& f, const Pointers*... pointers) {
    if (are_aligned(16, pointers...)) each<16 / sizeof(T)>(stream, count, f);
    else each<1>(stream, count, f);
}

template <class From, class To>
struct Cast {
    static constexpr const char* name = "cast";
    const From* x;
    To* y;
    template <int V>
    SMSIM_DEVICE void at(std::int64_t i) const {
        const Pack<From, V> in = load<From, V>(x + i);
        Pack<To, V> out;
        for (int j = 0; j < V; ++j) out.at[j] = from_float<To>(to_float(in.at[j]));
        store<To, V>(y + i, out);
    }
};

template <class T>
struct Add {
    static constexpr const char* name = "add";
    const T *a, *b;
    T* y;
    template <int V>
    SMSIM_DEVICE void at(std::int64_t i) const {
        const Pack<T, V> left = load<T, V>(a + i), right = load<T, V>(b + i);
        float sum[V];
        for (int j = 0; j < V; ++j) sum[j] = to_float(left.at[j]) + to_float(right.at[j]);
        put<T, V>(y + i, sum, false);
    }
};

template <class T>
struct Scale {
    static constexpr const char* name = "scale";
    const T* x;
    T* y;
    float factor;
    bool accumulates;
    template <int V>
    SMSIM_DEVICE void at(std::int64_t i) const {
        const Pack<T, V> in = load<T, V>(x + i);
        float out[V] = {};
        for (int j = 0; j < V; ++j) out[j] = factor * to_float(in.at[j]);
        put<T, V>(y + i, out, accumulates);
    }
};

inline constexpr float inverse_sqrt_2 = 0.70710678118654752440f, inverse_sqrt_2_pi = 0.39894228040143267794f;
// Hendrycks and Gimpel, arXiv 1606.08415: gelu(x) ~ x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
inline constexpr float sqrt_2_by_pi = 0.79788456080286535588f, gelu_cubic = 0.044715f;

template <Unary kind, class T>
SMSIM_DEVICE float unary_value(float x) {
    if constexpr (kind == Unary::gelu) return 0.5f * x * (1.0f + erff(x * inverse_sqrt_2));
    // (1 + tanh u)/2 = 1/(1 + exp(-2u)).
    if constexpr (kind == Unary::gelu_tanh)
        return x *
               reciprocal_of<T>(1.0f + exponential<T>(-2.0f * sqrt_2_by_pi * (x + gelu_cubic * x * x * x)));
    if constexpr (kind == Unary::relu) return x > 0.0f ? x : 0.0f;
    if constexpr (kind == Unary::silu) return x * reciprocal_of<T>(1.0f + exponential<T>(-x));
    if constexpr (kind == Unary::tanh) return tanhf(x);
}
// From the input for gelu and silu, from the output for relu and tanh.
template <Unary kind, class T>
SMSIM_DEVICE float unary_slope(float x) {
    if constexpr (kind == Unary::gelu)
        return 0.5f * (1.0f + erff(x * inverse_sqrt_2)) +
               x * inverse_sqrt_2_pi * exponential<T>(-0.5f * x * x);
    if constexpr (kind == Unary::gelu_tanh) {
        // With e = exp(-2|u|): (1 + tanh u)/2 is 1/(1 + e) or e/(1 + e), and 1 - tanh^2 u = 4 e/(1 + e)^2,
        // both without cancellation.
        const float u = sqrt_2_by_pi * (x + gelu_cubic * x * x * x);
        const float e = exponential<T>(-2.0f * fabsf(u)), s = reciprocal_of<T>(1.0f + e);
        return (u > 0.0f ? s : e * s) +
               2.0f * x * e * s * s * sqrt_2_by_pi * (1.0f + 3.0f * gelu_cubic * x * x);
    }
    if constexpr (kind == Unary::relu) return x > 0.0f ? 1.0f : 0.0f;
    if constexpr (kind == Unary::silu) {
        const float s = reciprocal_of<T>(1.0f + exponential<T>(-x));
        return s * (1.0f + x * (1.0f - s));
    }
    if constexpr (kind == Unary::tanh) return 1.0f - x * x;
}
// Chooses once a pack, not once an element.
template <class Call>
SMSIM_DEVICE void with_unary(Unary kind, const Call& call) {
    switch (kind) {
        case Unary::gelu: call(std::integral_constant<Unary, Unary::gelu>{}); break;
        case Unary::gelu_tanh: call(std::integral_constant<Unary, Unary::gelu_tanh>{}); break;
        case Unary::relu: call(std::integral_constant<Unary, Unary::relu>{}); break;
        case Unary::silu: call(std::integral_constant<Unary, Unary::silu>{}); break;
        case Unary::tanh: call(std::integral_constant<Unary, Unary::tanh>{}); break;
    }
}

template <class T>
struct Apply {
    static constexpr const char* name = "unary";
    Unary kind;
    const T* x;
    T* y;
    template <int V>
    SMSIM_DEVICE void at(std::int64_t i) const {
        const Pack<T, V> in = load<T, V>(x + i);
        float out[V] = {};
        with_unary(kind, [&](auto unary) {
            for (int j = 0; j < V; ++j) out[j] = unary_value<decltype(unary)::value, T>(to_float(in.at[j]));
        });
        put<T, V>(y + i, out, false);
    }
};

template <class T>
struct ApplyBackward {
    static constexpr const char* name = "unary_backward";
    Unary kind;
    const T *saved, *dy;
    T* dx;
    bool accumulates;
    template <int V>
    SMSIM_DEVICE void at(std::int64_t i) const {
        const Pack<T, V> in = load<T, V>(saved + i), gradient = load<T, V>(dy + i);
        float out[V] = {};
        with_unary(kind, [&](auto unary) {
            for (int j = 0; j < V; ++j)
                out[j] =
                    unary_slope<decltype(unary)::value, T>(to_float(in.at[j])) * to_float(gradient.at[j]);
        });
        put<T, V>(dx + i, out, accumulates);
    }
};

// [rows, 2 width] -> [rows, width]: unary(first half) * second half. V divides the width.
template <class T>
struct Gated {
    static constexpr const char* name = "gated";
    Unary kind;
    std::int64_t width;
    const T* x;
    T* y;
    template <int V>
    SMSIM_DEVICE void values(std::int64_t i, float (&out)[V]) const {
        const std::int64_t from = i + divide(i, width).quotient * width;
        const Pack<T, V> gate = load<T, V>(x + from), up = load<T, V>(x + from + width);
        with_unary(kind, [&](auto unary) {
            for (int j = 0; j < V; ++j)
                out[j] = unary_value<decltype(unary)::value, T>(to_float(gate.at[j])) * to_float(up.at[j]);
        });
    }
    template <int V>
    SMSIM_DEVICE void at(std::int64_t i) const {
        float out[V] = {};
        values<V>(i, out);
        put<T, V>(y + i, out, false);
    }
};

template <class T>
struct GatedBackward {
    static constexpr const char* name = "gated_backward";
    Unary kind;
    std::int64_t width;
    const T *x, *dy;
    T* dx;
    bool accumulates;
    template <int V>
    SMSIM_DEVICE void at(std::int64_t i) const {
        const std::int64_t from = i + divide(i, width).quotient * width;
        const Pack<T, V> gate = load<T, V>(x + from), up = load<T, V>(x + from + width),
                         gradient = load<T, V>(dy + i);
        float dgate[V] = {}, dup[V] = {};
        with_unary(kind, [&](auto unary) {
            for (int j = 0; j < V; ++j) {
                const float g = to_float(gate.at[j]), d = to_float(gradient.at[j]);
                dgate[j] = unary_slope<decltype(unary)::value, T>(g) * to_float(up.at[j]) * d;
                dup[j] = unary_value<decltype(unary)::value, T>(g) * d;
            }
        });
        put<T, V>(dx + from, dgate, accumulates);
        put<T, V>(dx + from + width, dup, accumulates);
    }
};

// y = (residual +) dropout(x). V divides the columns.
template <class T>
struct Dropout {
    static constexpr const char* name = "dropout";
    DropoutShape shape;
    std::uint64_t threshold;
    const T *x, *residual;
    T* y;
    std::uint8_t* mask;
    template <int V>
    SMSIM_DEVICE void at(std::int64_t i) const {
        const float kept = 1.0f / (1.0f - shape.probability);
        const Divided own = divide(i, shape.columns),
                      row = divide(shape.first_row + own.quotient, shape.rows_per_sample);
        const std::uint64_t key = shape.keys[row.quotient];
        const auto element = static_cast<std::uint64_t>(
            position_of(shape.token_range, row.remainder) * shape.width + shape.first_column + own.remainder);
        const Pack<T, V> in = load<T, V>(x + i);
        Pack<T, V> base;
        if (residual) base = load<T, V>(residual + i);
        Pack<std::uint8_t, V> keeps;
        float out[V] = {};
        for (int j = 0; j < V; ++j) {
            const bool drops = is_dropped(key, element + j, threshold);
            keeps.at[j] = drops ? 0 : 1;
            out[j] = drops ? 0.0f : to_float(in.at[j]) * kept;
            if (residual) out[j] += to_float(base.at[j]);
        }
        put<T, V>(y + i, out, false);
        store<std::uint8_t, V>(mask + i, keeps);
    }
};

template <class T>
struct DropoutBackward {
    static constexpr const char* name = "dropout_backward";
    float kept;
    const std::uint8_t* mask;
    const T* dy;
    T* dx;
    bool accumulates;
    template <int V>
    SMSIM_DEVICE void at(std::int64_t i) const {
        const Pack<T, V> gradient = load<T, V>(dy + i);
        const Pack<std::uint8_t, V> keeps = load<std::uint8_t, V>(mask + i);
        float out[V] = {};
        for (int j = 0; j < V; ++j) out[j] = keeps.at[j] ? to_float(gradient.at[j]) * kept : 0.0f;
        put<T, V>(dx + i, out, accumulates);
    }
};

inline void cast(Stream s, Type from, Type to, std::int64_t count, const void* x, void* y) {
    with_type(from, [&](auto in) {
        with_type(to, [&](auto out) {
            using From = decltype(in);
            using To = decltype(out);
            const Cast<From, To> f{as<const From>(x), as<To>(y)};
            if (are_aligned(32, x, y)) each<8>(s, count, f);
            else each<1>(s, count, f);
        });
    });
}

inline void add(Stream s, Type type, std::int64_t count, const void* a, const void* b, void* y) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        each_of<T>(s, count, Add<T>{as<const T>(a), as<const T>(b), as<T>(y)}, a, b, y);
    });
}

inline void scale(Stream s, Type type, std::int64_t count, float factor, const void* x, void* y,
                  bool accumulates) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        each_of<T>(s, count, Scale<T>{as<const T>(x), as<T>(y), factor, accumulates}, x, y);
    });
}

inline void unary(Stream s, Type type, Unary kind, std::int64_t count, const void* x, void* y) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        each_of<T>(s, count, Apply<T>{kind, as<const T>(x), as<T>(y)}, x, y);
    });
}

inline void unary_backward(Stream s, Type type, Unary kind, std::int64_t count, const void* saved,
                           const void* dy, void* dx, bool accumulates) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        each_of<T>(s, count,
                   ApplyBackward<T>{kind, as<const T>(saved), as<const T>(dy), as<T>(dx), accumulates}, saved,
                   dy, dx);
    });
}

template <class T, class Function, class... Pointers>
void each_in_rows(Stream s, std::int64_t rows, std::int64_t width, const Function& f,
                  const Pointers*... pointers) {
    constexpr int wide = 16 / sizeof(T);
    if (width % wide == 0 && are_aligned(16, pointers...)) each<wide>(s, rows * width, f);
    else each<1>(s, rows * width, f);
}

inline void gated(Stream s, Type type, Unary kind, std::int64_t rows, std::int64_t width, const void* x,
                  void* y) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        each_in_rows<T>(s, rows, width, Gated<T>{kind, width, as<const T>(x), as<T>(y)}, x, y);
    });
}

inline void gated_backward(Stream s, Type type, Unary kind, std::int64_t rows, std::int64_t width,
                           const void* x, const void* dy, void* dx, bool accumulates) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        each_in_rows<T>(
            s, rows, width,
            GatedBackward<T>{kind, width, as<const T>(x), as<const T>(dy), as<T>(dx), accumulates}, x, dy,
            dx);
    });
}

inline void dropout(Stream s, Type type, const DropoutShape& shape, const void* x, const void* residual,
                    void* y, std::uint8_t* mask) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        const Dropout<T> f{
            shape, threshold_of(shape.probability), as<const T>(x), as<const T>(residual), as<T>(y), mask};
        each_in_rows<T>(s, shape.rows, shape.columns, f, x, residual, y, mask);
    });
}

inline void dropout_backward(Stream s, Type type, std::int64_t count, float probability,
                             const std::uint8_t* mask, const void* dy, void* dx, bool accumulates) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        each_of<T>(
            s, count,
            DropoutBackward<T>{1.0f / (1.0f - probability), mask, as<const T>(dy), as<T>(dx), accumulates},
            mask, dy, dx);
    });
}

inline void fill_elementwise(Kernels& table) {
    table.cast = cast;
    table.add = add;
    table.scale = scale;
    table.unary = unary;
    table.unary_backward = unary_backward;
    table.gated = gated;
    table.gated_backward = gated_backward;
    table.dropout = dropout;
    table.dropout_backward = dropout_backward;
}

}  // namespace exec::cuda::kernel_body
