// Planes of pixels [samples, channels, rows, columns], and rows of tokens moved about.
#pragma once

#include "exec/cuda/body/elementwise.h"

namespace exec::cuda::kernel_body {

// A channel a block: mean and reciprocal deviation over samples and pixels, two passes over the (cached)
// values.
template <class T>
struct BatchNorm {
    static constexpr bool is_cooperative = true;
    static constexpr int most_threads = 512;
    static constexpr const char* name = "batch_norm";
    ImageShape shape;
    float epsilon;
    const T* x;
    Values scale, shift;
    T* y;
    float* statistics;

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        float* scratch = t.template shared<float>();
        const std::int64_t channel = t.block(), pixels = shape.rows * shape.columns,
                           count = shape.samples * pixels;
        const auto index = [&](std::int64_t i) {
            return (i / pixels * shape.channels + channel) * pixels + i % pixels;
        };
        float sum = 0, squares = 0;
        for (std::int64_t i = t.thread(); i < count; i += t.threads()) sum += to_float(x[index(i)]);
        const float mean = block_sum(t, sum, scratch) / static_cast<float>(count);
        for (std::int64_t i = t.thread(); i < count; i += t.threads()) {
            const float centred = to_float(x[index(i)]) - mean;
            squares += centred * centred;
        }
        const float reciprocal =
            1.0f / sqrtf(block_sum(t, squares, scratch) / static_cast<float>(count) + epsilon);
        const float factor = reciprocal * value_at(scale, channel), offset = value_at(shift, channel);
        for (std::int64_t i = t.thread(); i < count; i += t.threads())
            y[index(i)] = from_float<T>((to_float(x[index(i)]) - mean) * factor + offset);
        if (t.thread() == 0) {
            statistics[2 * channel] = mean;
            statistics[2 * channel + 1] = reciprocal;
        }
    }
};

// The two sums over a channel, for gradients of the input (dx not null) or of scale and shift.
template <class T>
struct BatchNormBackward {
    static constexpr bool is_cooperative = true;
    static constexpr int most_threads = 512;
    static constexpr const char* name = "batch_norm_backward";
    ImageShape shape;
    const T* x;
    const float* statistics;
    Values scale;
    const T* dy;
    T* dx;
    bool accumulates;
    Sums dscale, dshift;

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        float* scratch = t.template shared<float>();
        const std::int64_t channel = t.block(), pixels = shape.rows * shape.columns,
                           count = shape.samples * pixels;
        const auto index = [&](std::int64_t i) {
            return (i / pixels * shape.channels + channel) * pixels + i % pixels;
        };
        const float mean = statistics[2 * channel], reciprocal = statistics[2 * channel + 1];
        float sum = 0, product = 0;
        for (std::int64_t i = t.thread(); i < count; i += t.threads()) {
            const float d = to_float(dy[index(i)]);
            sum += d;
            product += d * (to_float(x[index(i)]) - mean);
        }
        sum = block_sum(t, sum, scratch);
        product = block_sum(t, product, scratch) * reciprocal;
        if (!dx) {
            if (t.thread() != 0) return;
            add_at(dscale, channel, product);
            add_at(dshift, channel, sum);
            return;
        }
        const float factor = value_at(scale, channel) * reciprocal, share = 1.0f / count;
        for (std::int64_t i = t.thread(); i < count; i += t.threads()) {
            const float out[1] = {factor * (to_float(dy[index(i)]) - sum * share -
                                            (to_float(x[index(i)]) - mean) * (reciprocal * product * share))};
            put<T, 1>(dx + index(i), out, accumulates);
        }
    }
};

// sum[c] += over samples and pixels of plane c.
template <class T>
struct ChannelSums {
    static constexpr bool is_cooperative = true;
    static constexpr int most_threads = 512;
    static constexpr const char* name = "channel_sums";
    ImageShape shape;
    const T* dy;
    Sums sum;

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        float* scratch = t.template shared<float>();
        const std::int64_t pixels = shape.out_rows * shape.out_columns, count = shape.samples * pixels;
        float total = 0;
        for (std::int64_t i = t.thread(); i < count; i += t.threads())
            total += to_float(dy[(i / pixels * shape.out_channels + t.block()) * pixels + i % pixels]);
        total = block_sum(t, total, scratch);
        if (t.thread() == 0) add_at(sum, t.block(), total);
    }
};

template <class T>
struct ChannelBias {
    static constexpr const char* name = "add_channel_bias";
    std::int64_t pixels, channels;
    Values bias;
    T* y;
    template <int V>
    SMSIM_DEVICE void at(std::int64_t i) const {
        static_assert(V == 1);
        y[i] = from_float<T>(to_float(y[i]) + value_at(bias, i / pixels % channels));
    }
};

// The pixels of the input that window (oy, ox) covers.
struct Window {
    std::int64_t y0, y1, x0, x1;
    SMSIM_DEVICE Window(const ImageShape& s, std::int64_t oy, std::int64_t ox) {
        y0 = oy * s.stride - s.padding;
        x0 = ox * s.stride - s.padding;
        y1 = y0 + s.kernel_y < s.rows ? y0 + s.kernel_y : s.rows;
        x1 = x0 + s.kernel_x < s.columns ? x0 + s.kernel_x : s.columns;
        y0 = y0 > 0 ? y0 : 0;
        x0 = x0 > 0 ? x0 : 0;
    }
};
// The windows of the output that pixel (y, x) lies in: first and last.
struct Covering {
    std::int64_t y0, y1, x0, x1;
    SMSIM_DEVICE Covering(const ImageShape& s, std::int64_t y, std::int64_t x) {
        y0 = y + s.padding - s.kernel_y + 1 > 0 ? (y + s.padding - s.kernel_y + s.stride) / s.stride : 0;
        x0 = x + s.padding - s.kernel_x + 1 > 0 ? (x + s.padding - s.kernel_x + s.stride) / s.stride : 0;
        y1 = (y + s.padding) / s.stride < s.out_rows - 1 ? (y + s.padding) / s.stride : s.out_rows - 1;
        x1 = (x + s.padding) / s.stride < s.out_columns - 1 ? (x + s.padding) / s.stride : s.out_columns - 1;
    }
};

template <class T>
struct MaxPool {
    static constexpr const char* name = "max_pool";
    ImageShape shape;
    const T* x;
    T* y;
    std::int64_t* positions;
    template <int V>
    SMSIM_DEVICE void at(std::int64_t i) const {
        const std::int64_t pixels = shape.out_rows * shape.out_columns, plane = i / pixels;
        const Window w(shape, i % pixels / shape.out_columns, i % shape.out_columns);
        const T* in = x + plane * shape.rows * shape.columns;
        std::int64_t best = -1;
        for (std::int64_t py = w.y0; py < w.y1; ++py)
            for (std::int64_t px = w.x0; px < w.x1; ++px)
                if (best < 0 || to_float(in[py * shape.columns + px]) > to_float(in[best]))
                    best = py * shape.columns + px;
        y[i] = in[best];
        positions[i] = best;
    }
};

// A pixel of the input a thread: the windows whose maximum it is.
template <class T>
struct MaxPoolBackward {
    static constexpr const char* name = "max_pool_backward";
    ImageShape shape;
    const std::int64_t* positions;
    const T* dy;
    T* dx;
    bool accumulates;
    template <int V>
    SMSIM_DEVICE void at(std::int64_t i) const {
        const std::int64_t pixels = shape.rows * shape.columns,
                           plane = i / pixels * shape.out_rows * shape.out_columns;
        const Covering c(shape, i % pixels / shape.columns, i % shape.columns);
        float out[1] = {0};
        for (std::int64_t oy = c.y0; oy <= c.y1; ++oy)
            for (std::int64_t ox = c.x0; ox <= c.x1; ++ox) {
                const std::int64_t at = plane + oy * shape.out_columns + ox;
                if (positions[at] == i % pixels) out[0] += to_float(dy[at]);
            }
        put<T, 1>(dx + i, out, accumulates);
    }
};

// Pixels of the padding count as zeros, as in PyTorch's default.
template <class T>
struct AveragePool {
    static constexpr const char* name = "average_pool";
    ImageShape shape;
    const T* x;
    T* y;
    template <int V>
    SMSIM_DEVICE void at(std::int64_t i) const {
        const std::int64_t pixels = shape.out_rows * shape.out_columns;
        const Window w(shape, i % pixels / shape.out_columns, i % shape.out_columns);
        const T* in = x + i / pixels * shape.rows * shape.columns;
        float sum = 0;
        for (std::int64_t py = w.y0; py < w.y1; ++py)
            for (std::int64_t px = w.x0; px < w.x1; ++px) sum += to_float(in[py * shape.columns + px]);
        y[i] = from_float<T>(sum / (shape.kernel_y * shape.kernel_x));
    }
};

template <class T>
struct AveragePoolBackward {
    static constexpr const char* name = "average_pool_backward";
    ImageShape shape;
    const T* dy;
    T* dx;
    bool accumulates;
    template <int V>
    SMSIM_DEVICE void at(std::int64_t i) const {
        const std::int64_t pixels = shape.rows * shape.columns,
                           plane = i / pixels * shape.out_rows * shape.out_columns;
        const Covering c(shape, i % pixels / shape.columns, i % shape.columns);
        float out[1] = {0};
        for (std::int64_t oy = c.y0; oy <= c.y1; ++oy)
            for (std::int64_t ox = c.x0; ox <= c.x1; ++ox)
                out[0] += to_float(dy[plane + oy * shape.out_columns + ox]);
        out[0] /= shape.kernel_y * shape.kernel_x;
        put<T, 1>(dx + i, out, accumulates);
    }
};

template <class T>
struct Transpose {
    static constexpr const char* name = "transpose";
    std::int64_t leading, rest;
    const T* x;
    T* y;
    bool accumulates;
    template <int V>
    SMSIM_DEVICE void at(std::int64_t i) const {
        const std::int64_t sample = i / (leading * rest), j = i / leading % rest, k = i % leading;
        const float out[1] = {to_float(x[(sample * leading + k) * rest + j])};
        put<T, 1>(y + i, out, accumulates);
    }
};

template <class T>
struct AverageTokens {
    static constexpr const char* name = "average_tokens";
    std::int64_t tokens, width;
    const T* x;
    T* y;
    template <int V>
    SMSIM_DEVICE void at(std::int64_t i) const {
        float sum = 0;
        for (std::int64_t k = 0; k < tokens; ++k)
            sum += to_float(x[(i / width * tokens + k) * width + i % width]);
        y[i] = from_float<T>(sum / tokens);
    }
};

template <class T>
struct AverageTokensBackward {
    static constexpr const char* name = "average_tokens_backward";
    std::int64_t tokens, width;
    const T* dy;
    T* dx;
    bool accumulates;
    template <int V>
    SMSIM_DEVICE void at(std::int64_t i) const {
        const float out[1] = {to_float(dy[i / (tokens * width) * width + i % width]) /
                              static_cast<float>(tokens)};
        put<T, 1>(dx + i, out, accumulates);
    }
};

template <class T>
struct Select {
    static constexpr const char* name = "select";
    std::int64_t selected, tokens, width;
    const std::int64_t* positions;
    const T* x;
    T* y;
    template <int V>
    SMSIM_DEVICE void at(std::int64_t i) const {
        const std::int64_t r = i / width;
        y[i] = x[(r / selected * tokens + (positions ? positions[r] : 0)) * width + i % width];
    }
};

// One column of one sample a thread, row after row: a position may be selected twice.
template <class T>
struct SelectBackward {
    static constexpr const char* name = "select_backward";
    std::int64_t selected, tokens, width;
    const std::int64_t* positions;
    const T* dy;
    T* dx;
    template <int V>
    SMSIM_DEVICE void at(std::int64_t i) const {
        const std::int64_t sample = i / width;
        for (std::int64_t r = sample * selected; r < (sample + 1) * selected; ++r) {
            const float out[1] = {to_float(dy[r * width + i % width])};
            put<T, 1>(dx + (sample * tokens + (positions ? positions[r] : 0)) * width + i % width, out, true);
        }
    }
};

inline void batch_norm(Stream s, Type type, const ImageShape& shape, float epsilon, const void* x,
                       Values scale, Values shift, void* y, float* statistics) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        launch(s, shape.channels, 512, 32 * sizeof(float),
               BatchNorm<T>{shape, epsilon, as<const T>(x), scale, shift, as<T>(y), statistics});
    });
}
inline void batch_norm_backward(Stream s, Type type, const ImageShape& shape, const void* x,
                                const float* statistics, Values scale, const void* dy, void* dx,
                                bool accumulates) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        launch(
            s, shape.channels, 512, 32 * sizeof(float),
            BatchNormBackward<T>{
                shape, as<const T>(x), statistics, scale, as<const T>(dy), as<T>(dx), accumulates, {}, {}});
    });
}
inline void batch_norm_weights(Stream s, Type type, const ImageShape& shape, const void* x,
                               const float* statistics, const void* dy, Sums dscale, Sums dshift) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        launch(s, shape.channels, 512, 32 * sizeof(float),
               BatchNormBackward<T>{
                   shape, as<const T>(x), statistics, {}, as<const T>(dy), nullptr, false, dscale, dshift});
    });
}
inline void channel_sums(Stream s, Type type, const ImageShape& shape, const void* dy, Sums sum) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        launch(s, shape.out_channels, 512, 32 * sizeof(float), ChannelSums<T>{shape, as<const T>(dy), sum});
    });
}
inline void add_channel_bias(Stream s, Type type, const ImageShape& shape, Values bias, void* y) {
    const std::int64_t pixels = shape.out_rows * shape.out_columns;
    with_type(type, [&](auto t) {
        using T = decltype(t);
        each<1>(s, shape.samples * shape.out_channels * pixels,
                ChannelBias<T>{pixels, shape.out_channels, bias, as<T>(y)});
    });
}
inline void max_pool(Stream s, Type type, const ImageShape& shape, const void* x, void* y,
                     std::int64_t* positions) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        each<1>(s, shape.samples * shape.channels * shape.out_rows * shape.out_columns,
                MaxPool<T>{shape, as<const T>(x), as<T>(y), positions});
    });
}
inline void max_pool_backward(Stream s, Type type, const ImageShape& shape, const std::int64_t* positions,
                              const void* dy, void* dx, bool accumulates) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        each<1>(s, shape.samples * shape.channels * shape.rows * shape.columns,
                MaxPoolBackward<T>{shape, positions, as<const T>(dy), as<T>(dx), accumulates});
    });
}
inline void average_pool(Stream s, Type type, const ImageShape& shape, const void* x, void* y) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        each<1>(s, shape.samples * shape.channels * shape.out_rows * shape.out_columns,
                AveragePool<T>{shape, as<const T>(x), as<T>(y)});
    });
}
inline void average_pool_backward(Stream s, Type type, const ImageShape& shape, const void* dy, void* dx,
                                  bool accumulates) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        each<1>(s, shape.samples * shape.channels * shape.rows * shape.columns,
                AveragePoolBackward<T>{shape, as<const T>(dy), as<T>(dx), accumulates});
    });
}
inline void transpose(Stream s, Type type, std::int64_t samples, std::int64_t leading, std::int64_t rest,
                      const void* x, void* y, bool accumulates) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        each<1>(s, samples * leading * rest,
                Transpose<T>{leading, rest, as<const T>(x), as<T>(y), accumulates});
    });
}
inline void average_tokens(Stream s, Type type, std::int64_t samples, std::int64_t tokens, std::int64_t width,
                           const void* x, void* y) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        each<1>(s, samples * width, AverageTokens<T>{tokens, width, as<const T>(x), as<T>(y)});
    });
}
inline void average_tokens_backward(Stream s, Type type, std::int64_t samples, std::int64_t tokens,
                                    std::int64_t width, const void* dy, void* dx, bool accumulates) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        each<1>(s, samples * tokens * width,
                AverageTokensBackward<T>{tokens, width, as<const T>(dy), as<T>(dx), accumulates});
    });
}
inline void select(Stream s, Type type, std::int64_t rows, std::int64_t selected, std::int64_t tokens,
                   std::int64_t width, const std::int64_t* positions, const void* x, void* y) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        each<1>(s, rows * width, Select<T>{selected, tokens, width, positions, as<const T>(x), as<T>(y)});
    });
}
inline void select_backward(Stream s, Type type, std::int64_t rows, std::int64_t selected,
                            std::int64_t tokens, std::int64_t width, const std::int64_t* positions,
                            const void* dy, void* dx) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        each<1>(s, rows / selected * width,
                SelectBackward<T>{selected, tokens, width, positions, as<const T>(dy), as<T>(dx)});
    });
}

inline void fill_image(Kernels& table) {
    table.batch_norm = batch_norm;
    table.batch_norm_backward = batch_norm_backward;
    table.batch_norm_weights = batch_norm_weights;
    table.max_pool = max_pool;
    table.max_pool_backward = max_pool_backward;
    table.average_pool = average_pool;
    table.average_pool_backward = average_pool_backward;
    table.add_channel_bias = add_channel_bias;
    table.channel_sums = channel_sums;
    table.transpose = transpose;
    table.average_tokens = average_tokens;
    table.average_tokens_backward = average_tokens_backward;
    table.select = select;
    table.select_backward = select_backward;
}

}  // namespace exec::cuda::kernel_body
