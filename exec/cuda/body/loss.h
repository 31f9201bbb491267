// Cross-entropy over logits of which a rank may hold a part of the classes: the logits are read once forward
// and once backward, nothing of their size is kept.
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
        const std::int64_t stride = std::int64_t{t.threads()} * V;
        const auto take = [&](std::int64_t c, const Pack<T, V>& pack) {
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
        };
        // Two loads are under way at a time.
        std::int64_t c = std::int64_t{t.thread()} * V;
        for (; c + stride < shape.valid; c += 2 * stride) {
            const Pack<T, V> first = load<T, V>(row + c), second = load<T, V>(row + c + stride);
            take(c, first);
            take(c + stride, second);
        }
        if (c < shape.valid) take(c, load<T, V>(row + c));
        const float largest = block_max(t, most, scratch);
        const float total = block_sum(t, sum > 0 ? sum * expf(most - largest) : 0.0f, scratch);
        if (t.thread() != 0) return;
        const std::int64_t label = labels[t.block()] - shape.first_class;
        statistics[3 * t.block()] = largest;
        statistics[3 * t.block() + 1] = total;
        statistics[3 * t.block() + 2] = label >= 0 && label < shape.valid ? to_float(row[label]) : 0.0f;
    }
};

// The logarithm of the sum of exponentials of row r, from the parts of all ranks; the label's logit in
// `label`.
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
        for (std::int64_t c = t.thread(); c < shape.columns; c += t.threads())
            p[at + c] = c < shape.valid ? expf(to_float(logits[at + c]) - sum) : 0.0f;
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
        for (std::int64_t c = std::int64_t{t.thread()} * V; c < shape.columns;
             c += std::int64_t{t.threads()} * V) {
            Pack<T, V> pack;
            if (!probabilities) pack = load<T, V>(logits + at + c);
            float out[V] = {};
            for (int j = 0; j < V; ++j) {
                out[j] = 0;
                if (c + j >= shape.valid) continue;
                const float p =
                    probabilities ? probabilities[at + c + j] : exponential<T>(to_float(pack.at[j]) - sum);
                out[j] = weight * (c + j == label ? p - 1.0f : p);
            }
            put<T, V>(dlogits + at + c, out, accumulates);
        }
    }
};

// Logits stored [columns, rows] (ClassShape::is_across). A lane has as many neighbouring rows as 16 bytes
// hold, a warp every eighth class of its block's chunk of classes: what a warp reads at once lies together.
inline constexpr int across_warps = 8;

template <class T>
struct AcrossTile {
    static constexpr int V = 16 / sizeof(T), rows_per_block = 32 * V;
    std::int64_t tiles, classes_per_chunk;

    template <class Thread>
    SMSIM_DEVICE std::int64_t row(const Thread& t) const {
        return t.block() % tiles * rows_per_block + t.thread() % 32 * V;
    }
    template <class Thread>
    SMSIM_DEVICE std::int64_t begin(const Thread& t) const {
        return chunk(t) * classes_per_chunk + t.thread() / 32;
    }
    template <class Thread>
    SMSIM_DEVICE std::int64_t end(const Thread& t, std::int64_t classes) const {
        const std::int64_t last = (chunk(t) + 1) * classes_per_chunk;
        return last < classes ? last : classes;
    }
    template <class Thread>
    SMSIM_DEVICE std::int64_t chunk(const Thread& t) const {
        return t.block() / tiles;
    }
};

// Of every chunk and row: largest logit and the sum of exponentials relative to it, [chunks][2][rows].
template <class T>
struct LossPartialsAcross {
    static constexpr bool is_cooperative = true;
    static constexpr int most_threads = 32 * across_warps;
    static constexpr const char* name = "loss_partials_across";
    static constexpr int V = AcrossTile<T>::V;
    ClassShape shape;
    AcrossTile<T> tile;
    const T* logits;
    float* partials;

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        float *largest = t.template shared<float>(),
              *sums = largest + across_warps * tile.rows_per_block;  // [warps][rows of the block] each
        const std::int64_t row = tile.row(t), end = tile.end(t, shape.valid);
        float most[V], sum[V] = {};
        for (int j = 0; j < V; ++j) most[j] = least_float;
        const auto take = [&](const Pack<T, V>& pack) {
            SMSIM_UNROLL
            for (int j = 0; j < V; ++j) {
                const float x = to_float(pack.at[j]);
                if (x > most[j]) {
                    sum[j] *= expf(most[j] - x);
                    most[j] = x;
                }
                sum[j] += exponential<T>(x - most[j]);
            }
        };
        if (row < shape.rows) {
            // Four loads are under way at a time.
            const T* from = logits + row;
            std::int64_t c = tile.begin(t);
            for (; c + 3 * across_warps < end; c += 4 * across_warps) {
                Pack<T, V> packs[4];
                SMSIM_UNROLL
                for (int i = 0; i < 4; ++i) packs[i] = load<T, V>(from + (c + i * across_warps) * shape.rows);
                SMSIM_UNROLL
                for (int i = 0; i < 4; ++i) take(packs[i]);
            }
            for (; c < end; c += across_warps) take(load<T, V>(from + c * shape.rows));
        }
        const int lane = t.thread() % 32, warp = t.thread() / 32;
        for (int j = 0; j < V; ++j) {  // neighbouring lanes in neighbouring banks
            largest[warp * tile.rows_per_block + 32 * j + lane] = most[j];
            sums[warp * tile.rows_per_block + 32 * j + lane] = sum[j];
        }
        t.synchronize();
        for (int slot = t.thread(); slot < tile.rows_per_block; slot += t.threads()) {
            const std::int64_t r = t.block() % tile.tiles * tile.rows_per_block + slot % 32 * V + slot / 32;
            if (r >= shape.rows) continue;
            float all = largest[slot], total = 0;
            for (int w = 1; w < across_warps; ++w)
                all = all > largest[w * tile.rows_per_block + slot] ? all
                                                                    : largest[w * tile.rows_per_block + slot];
            for (int w = 0; w < across_warps; ++w)
                total += sums[w * tile.rows_per_block + slot] *
                         expf(largest[w * tile.rows_per_block + slot] - all);
            partials[tile.chunk(t) * 2 * shape.rows + r] = all;
            partials[(tile.chunk(t) * 2 + 1) * shape.rows + r] = total;
        }
    }
};

template <class T>
struct LossStatisticsAcross {
    static constexpr const char* name = "loss_statistics_across";
    ClassShape shape;
    std::int64_t chunks;
    const T* logits;
    const std::int64_t* labels;
    const float* partials;
    float* statistics;
    template <int V>
    SMSIM_DEVICE void at(std::int64_t r) const {
        float largest = least_float, total = 0;
        for (std::int64_t c = 0; c < chunks; ++c) {
            const float other = partials[c * 2 * shape.rows + r];
            largest = largest > other ? largest : other;
        }
        for (std::int64_t c = 0; c < chunks; ++c)
            total +=
                partials[(c * 2 + 1) * shape.rows + r] * expf(partials[c * 2 * shape.rows + r] - largest);
        const std::int64_t label = labels[r] - shape.first_class;
        statistics[3 * r] = largest;
        statistics[3 * r + 1] = total;
        statistics[3 * r + 2] =
            label >= 0 && label < shape.valid ? to_float(logits[label * shape.rows + r]) : 0.0f;
    }
};

// Probabilities, or, with dlogits, their gradient.
template <class T>
struct CrossEntropyAcross {
    static constexpr bool is_cooperative = false;
    static constexpr int most_threads = 32 * across_warps;
    static constexpr const char* name = "cross_entropy_across";
    static constexpr int V = AcrossTile<T>::V;
    ClassShape shape;
    AcrossTile<T> tile;
    float factor;
    const StepFactors* factors;
    const T* logits;
    const float* statistics;
    float* probabilities;
    const std::int64_t* labels;
    T* dlogits;
    bool accumulates;

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        const std::int64_t row = tile.row(t), end = tile.end(t, shape.columns);
        if (row >= shape.rows) return;
        const bool is_kept = dlogits && probabilities;  // what the loss kept of the same logits
        const float weight = factors ? factor * factors->loss_scale : factor;
        float sums[V], ignored;
        std::int64_t own[V] = {};
        SMSIM_UNROLL
        for (int j = 0; j < V; ++j) {
            sums[j] = is_kept ? 0.0f : log_sum(shape, statistics, row + j, ignored);
            if (dlogits) own[j] = labels[row + j] - shape.first_class;
        }
        for (std::int64_t c = tile.begin(t); c < end; c += across_warps) {
            const std::int64_t at = c * shape.rows + row;
            float p[V] = {};
            if (is_kept) {
                SMSIM_UNROLL
                for (int j = 0; j < V; ++j) p[j] = probabilities[at + j];
            } else {
                const Pack<T, V> pack = load<T, V>(logits + at);
                SMSIM_UNROLL
                for (int j = 0; j < V; ++j)
                    p[j] = c < shape.valid ? exponential<T>(to_float(pack.at[j]) - sums[j]) : 0.0f;
            }
            if (!dlogits) {
                SMSIM_UNROLL
                for (int j = 0; j < V; ++j) probabilities[at + j] = p[j];
                continue;
            }
            SMSIM_UNROLL
            for (int j = 0; j < V; ++j)
                p[j] = c < shape.valid ? weight * (c == own[j] ? p[j] - 1.0f : p[j]) : 0.0f;
            put<T, V>(dlogits + at, p, accumulates);
        }
    }
};

// Chunks of columns: so many that `wanted_blocks` blocks of 256 rows each keep every multiprocessor busy, but
// none of fewer than 64 columns, and no more than 128, whose partial sums are still nothing to add up.
inline std::int64_t across_chunks(const ClassShape& shape) {
    constexpr std::int64_t wanted_blocks = 1024, rows_per_chunk = 256, least_columns = 64, most_chunks = 128;
    return at_most(at_most(ceiling(wanted_blocks, ceiling(shape.rows, rows_per_chunk)),
                           ceiling(shape.columns, least_columns)),
                   most_chunks);
}
inline std::size_t across_workspace(const ClassShape& shape) {
    return (across_chunks(shape) * 2 * shape.rows) * sizeof(float);
}
template <class T>
AcrossTile<T> across_tile(const ClassShape& shape) {
    return {ceiling(shape.rows, AcrossTile<T>::rows_per_block), ceiling(shape.columns, across_chunks(shape))};
}

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

inline void loss_statistics(Stream s, Type type, const ClassShape& shape, const void* logits,
                            const std::int64_t* labels, float* statistics, void* workspace) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        constexpr int wide = 16 / sizeof(T);
        const int threads = shape.columns > 4096 ? 512 : 128;
        const T* in = as<const T>(logits);
        if (shape.is_across) {
            auto* partials = as<float>(workspace);
            const AcrossTile<T> tile = across_tile<T>(shape);
            const std::int64_t chunks = ceiling(shape.columns, tile.classes_per_chunk);
            launch(s, tile.tiles * chunks, 32 * across_warps,
                   2 * sizeof(float) * across_warps * AcrossTile<T>::rows_per_block,
                   LossPartialsAcross<T>{shape, tile, in, partials});
            each<1>(s, shape.rows, LossStatisticsAcross<T>{shape, chunks, in, labels, partials, statistics});
        } else if (shape.columns % wide == 0 && are_aligned(16, logits))
            launch(s, shape.rows, threads, 32 * sizeof(float),
                   LossStatistics<T, wide>{shape, in, labels, statistics});
        else
            launch(s, shape.rows, threads, 32 * sizeof(float),
                   LossStatistics<T, 1>{shape, in, labels, statistics});
    });
}

template <class T>
void cross_entropy_across(Stream s, const CrossEntropyAcross<T>& body) {
    launch(s, body.tile.tiles * ceiling(body.shape.columns, body.tile.classes_per_chunk), 32 * across_warps,
           0, body);
}

inline void cross_entropy(Stream s, Type type, const ClassShape& shape, const void* logits,
                          const float* statistics, float* loss, std::int64_t copies, float* probabilities) {
    launch(s, 1, 1024, 32 * sizeof(float), CrossEntropy{shape, statistics, loss, copies});
    if (!probabilities) return;
    with_type(type, [&](auto t) {
        using T = decltype(t);
        const T* in = as<const T>(logits);
        if (shape.is_across)
            cross_entropy_across<T>(s, {shape, across_tile<T>(shape), 1.0f, nullptr, in, statistics,
                                        probabilities, nullptr, nullptr, false});
        else launch(s, shape.rows, 256, 0, Probabilities<T>{shape, in, statistics, probabilities});
    });
}

inline void cross_entropy_backward(Stream s, Type type, const ClassShape& shape, float factor,
                                   const StepFactors* factors, const void* logits, const float* statistics,
                                   const float* probabilities, const std::int64_t* labels, void* dlogits,
                                   bool accumulates) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        constexpr int wide = 16 / sizeof(T);
        const T* in = as<const T>(logits);
        T* out = as<T>(dlogits);
        if (shape.is_across)
            cross_entropy_across<T>(s, {shape, across_tile<T>(shape), factor, factors, in, statistics,
                                        const_cast<float*>(probabilities), labels, out, accumulates});
        else if (shape.columns % wide == 0 && are_aligned(16, logits, dlogits))
            launch(s, shape.rows, 256, 0,
                   CrossEntropyBackward<T, wide>{shape, factor, factors, in, statistics, probabilities,
                                                 labels, out, accumulates});
        else
            launch(s, shape.rows, 256, 0,
                   CrossEntropyBackward<T, 1>{shape, factor, factors, in, statistics, probabilities, labels,
                                              out, accumulates});
    });
}

inline void add_loss(Stream s, const float* loss, float weight, float* sum) {
    launch(s, 1, 1, 0, Elementwise<AddLoss, 1>{{loss, weight, sum}, 1});
}

inline void fill_loss(Kernels& table) {
    table.loss_statistics = loss_statistics;
    table.cross_entropy = cross_entropy;
    table.cross_entropy_backward = cross_entropy_backward;
    table.add_loss = add_loss;
}

}  // namespace exec::cuda::kernel_body
