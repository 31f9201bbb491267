// Cross-entropy over logits of which a rank may hold a part of the classes: the logits are read once forward and once backward, nothing of their size is kept.
#pragma once

#include "exec/cuda/body/elementwise.h"

namespace exec::cuda::kernel_body {

inline constexpr float least_float = -3.402823466e38f;

// V divides the columns; what lies beyond `valid` is skipped.
template <class T, int V>
struct LossStatistics {
    static constexpr bool is_cooperative = true;
    static constexpr int most_threads = 512;
    static constexpr const char* name = "loss_statistics";
    ClassShape shape;
    const T* logits;
    const std::int64_t* labels;
    float* statistics;

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        float* scratch = t.template shared<float>();
        const T* row = logits + t.block() * shape.columns;
        // One pass: a sum relative to the largest so far, Milakov and Gimelshein, arXiv 1805.02867.
        float most = least_float, sum = 0;
        for (std::int64_t c = static_cast<std::int64_t>(t.thread()) * V; c < shape.valid; c += static_cast<std::int64_t>(t.threads()) * V) {
            const Pack<T, V> pack = load<T, V>(row + c);
            float x[V], local = least_float;
            for (int j = 0; j < V; ++j) {
                x[j] = c + j < shape.valid ? to_float(pack.at[j]) : least_float;
                local = local > x[j] ? local : x[j];
            }
            if (local > most) {
                sum *= expf(most - local);
                most = local;
            }
            for (int j = 0; j < V; ++j) sum += c + j < shape.valid ? exponential<T>(x[j] - most) : 0.0f;
        }
        const float largest = block_max(t, most, scratch);
        const float total = block_sum(t, sum > 0 ? sum * expf(most - largest) : 0.0f, scratch);
        if (t.thread() != 0) return;
        const std::int64_t label = labels[t.block()] - shape.first_class;
        statistics[3 * t.block()] = largest;
        statistics[3 * t.block() + 1] = total;
        statistics[3 * t.block() + 2] = label >= 0 && label < shape.valid ? to_float(row[label]) : 0.0f;
    }
};

// The logarithm of the sum of exponentials of row r, from the parts of all ranks; the label's logit in `label`.
SMSIM_DEVICE float log_sum(const ClassShape& shape, const float* statistics, std::int64_t r, float& label) {
    float largest = statistics[3 * r], sum = 0;
    label = 0;
    for (std::int64_t b = 1; b < shape.blocks; ++b) {
        const float other = statistics[3 * (b * shape.rows + r)];
        largest = largest > other ? largest : other;
    }
    for (std::int64_t b = 0; b < shape.blocks; ++b) {
        const float* part = statistics + 3 * (b * shape.rows + r);
        sum += part[1] * expf(part[0] - largest);
        label += part[2];
    }
    return largest + logf(sum);
}

// One block: the mean over all rows.
struct CrossEntropy {
    static constexpr bool is_cooperative = true;
    static constexpr int most_threads = 1024;
    static constexpr const char* name = "cross_entropy";
    ClassShape shape;
    const float* statistics;
    float* loss;
    std::int64_t copies;

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        float* scratch = t.template shared<float>();
        float sum = 0, label;
        for (std::int64_t r = t.thread(); r < shape.rows; r += t.threads()) {
            const float logarithm = log_sum(shape, statistics, r, label);
            sum += logarithm - label;
        }
        const float mean = block_sum(t, sum, scratch) / static_cast<float>(shape.rows);
        for (std::int64_t i = t.thread(); i < copies; i += t.threads()) loss[i] = mean;
    }
};

template <class T>
struct Probabilities {
    static constexpr bool is_cooperative = false;
    static constexpr int most_threads = 256;
    static constexpr const char* name = "probabilities";
    ClassShape shape;
    const T* logits;
    const float* statistics;
    float* p;

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        float label;
        const float sum = log_sum(shape, statistics, t.block(), label);
        const std::int64_t at = t.block() * shape.columns;
        for (std::int64_t c = t.thread(); c < shape.columns; c += t.threads()) p[at + c] = c < shape.valid ? expf(to_float(logits[at + c]) - sum) : 0.0f;
    }
};

template <class T, int V>
struct CrossEntropyBackward {
    static constexpr bool is_cooperative = false;
    static constexpr int most_threads = 256;
    static constexpr const char* name = "cross_entropy_backward";
    ClassShape shape;
    float factor;
    const StepFactors* factors;
    const T* logits;
    const float *statistics, *probabilities;
    const std::int64_t* labels;
    T* dlogits;
    bool accumulates;

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        float ignored;
        const float weight = factors ? factor * factors->loss_scale : factor;
        const float sum = probabilities ? 0.0f : log_sum(shape, statistics, t.block(), ignored);
        const std::int64_t at = t.block() * shape.columns, label = labels[t.block()] - shape.first_class;
        for (std::int64_t c = static_cast<std::int64_t>(t.thread()) * V; c < shape.columns; c += static_cast<std::int64_t>(t.threads()) * V) {
            Pack<T, V> pack;
            if (!probabilities) pack = load<T, V>(logits + at + c);
            float out[V] = {};
            for (int j = 0; j < V; ++j) {
                out[j] = 0;
                if (c + j >= shape.valid) continue;
                const float p = probabilities ? probabilities[at + c + j] : exponential<T>(to_float(pack.at[j]) - sum);
                out[j] = weight * (c + j == label ? p - 1.0f : p);
            }
            put<T, V>(dlogits + at + c, out, accumulates);
        }
    }
};

struct AddLoss {
    static constexpr const char* name = "add_loss";
    const float* loss;
    float weight;
    float* sum;
    template <int V>
    SMSIM_DEVICE void at(std::int64_t) const {
        *sum += weight * *loss;
    }
};

inline void loss_statistics(Stream s, Type type, const ClassShape& shape, const void* logits, const std::int64_t* labels, float* statistics) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        constexpr int wide = 16 / sizeof(T);
        const int threads = shape.columns > 4096 ? 512 : 128;
        const T* in = static_cast<const T*>(logits);
        if (shape.columns % wide == 0 && are_aligned(16, logits))
            launch(s, shape.rows, threads, 32 * sizeof(float), LossStatistics<T, wide>{shape, in, labels, statistics});
        else launch(s, shape.rows, threads, 32 * sizeof(float), LossStatistics<T, 1>{shape, in, labels, statistics});
    });
}

inline void cross_entropy(Stream s, Type type, const ClassShape& shape, const void* logits, const float* statistics, float* loss, std::int64_t copies,
                          float* probabilities) {
    launch(s, 1, 1024, 32 * sizeof(float), CrossEntropy{shape, statistics, loss, copies});
    if (!probabilities) return;
    with_type(type, [&](auto t) {
        using T = decltype(t);
        launch(s, shape.rows, 256, 0, Probabilities<T>{shape, static_cast<const T*>(logits), statistics, probabilities});
    });
}

inline void cross_entropy_backward(Stream s, Type type, const ClassShape& shape, float factor, const StepFactors* factors, const void* logits,
                                   const float* statistics, const float* probabilities, const std::int64_t* labels, void* dlogits, bool accumulates) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        constexpr int wide = 16 / sizeof(T);
        const T* in = static_cast<const T*>(logits);
        T* out = static_cast<T*>(dlogits);
        if (shape.columns % wide == 0 && are_aligned(16, logits, dlogits))
            launch(s, shape.rows, 256, 0, CrossEntropyBackward<T, wide>{shape, factor, factors, in, statistics, probabilities, labels, out, accumulates});
        else launch(s, shape.rows, 256, 0, CrossEntropyBackward<T, 1>{shape, factor, factors, in, statistics, probabilities, labels, out, accumulates});
    });
}

inline void add_loss(Stream s, const float* loss, float weight, float* sum) { launch(s, 1, 1, 0, Elementwise<AddLoss, 1>{{loss, weight, sum}, 1}); }

inline void fill_loss(Kernels& table) {
    table.loss_statistics = loss_statistics;
    table.cross_entropy = cross_entropy;
    table.cross_entropy_backward = cross_entropy_backward;
    table.add_loss = add_loss;
}

}  // namespace exec::cuda::kernel_body
