// Optimizer steps over all parameters at once, as PyTorch defines them (torch.optim.SGD, Adam, AdamW), on fp32 master weights where there are such.
#pragma once

#include "exec/cuda/body/launch.h"

namespace exec::cuda::kernel_body {

// P: the parameters that forward reads, G: gradients. A block takes one chunk of one range.
template <class P, class G, bool is_adam>
struct Update {
    static constexpr bool is_cooperative = false;
    static constexpr int most_threads = 256;
    static constexpr const char* name = is_adam ? "adam" : "sgd";
    const DeviceRange* ranges;
    const UpdateChunk* chunks;
    const StepFactors* factors;
    const float* bad;

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        if (bad && *bad != 0.0f) return;
        const UpdateChunk chunk = chunks[t.block()];
        const DeviceRange range = ranges[chunk.range];
        const StepFactors f = *factors;
        auto* parameter = static_cast<P*>(range.parameter);
        const auto* gradients = static_cast<const G*>(range.gradient);
        const std::int64_t end = chunk.begin + update_chunk < range.count ? chunk.begin + update_chunk : range.count;
        const bool is_decoupled = f.is_decoupled != 0.0f;
        const float keep = is_decoupled ? 1.0f - f.learning_rate * range.weight_decay : 1.0f, pull = is_decoupled ? 0.0f : range.weight_decay;
        const float unscale = 1.0f / f.loss_scale;
        for (std::int64_t i = chunk.begin + t.thread(); i < end; i += t.threads()) {
            float p = range.master ? range.master[i] : to_float(parameter[i]);
            float g = to_float(gradients[i]) * unscale;
            if constexpr (is_adam) {
                g += pull * p;
                const float first = f.beta1 * range.first[i] + (1.0f - f.beta1) * g;
                const float second = f.beta2 * range.second[i] + (1.0f - f.beta2) * g * g;
                range.first[i] = first;
                range.second[i] = second;
                p = p * keep - f.step_size * first / (sqrtf(second) * f.second_correction + f.epsilon);
            } else {
                g += range.weight_decay * p;
                if (range.first) g = range.first[i] = f.momentum * range.first[i] + g;
                p -= f.learning_rate * g;
            }
            if (range.master) range.master[i] = p;
            parameter[i] = from_float<P>(p);
        }
    }
};

template <class G>
struct NormPartials {
    static constexpr bool is_cooperative = true;
    static constexpr int most_threads = 256;
    static constexpr const char* name = "gradient_norm";
    const DeviceRange* ranges;
    const UpdateChunk* chunks;
    const StepFactors* factors;
    float* partials;

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        float* scratch = t.template shared<float>();
        const UpdateChunk chunk = chunks[t.block()];
        const DeviceRange range = ranges[chunk.range];
        const auto* gradients = static_cast<const G*>(range.gradient);
        const std::int64_t end = chunk.begin + update_chunk < range.count ? chunk.begin + update_chunk : range.count;
        const float unscale = 1.0f / factors->loss_scale;
        float sum = 0, bad = 0;
        for (std::int64_t i = chunk.begin + t.thread(); i < end; i += t.threads()) {
            const float g = to_float(gradients[i]);
            if (!(fabsf(g) <= 3.402823466e38f)) bad = 1;
            sum += g * unscale * (g * unscale);
        }
        sum = block_sum(t, sum, scratch);
        bad = block_sum(t, bad, scratch);
        if (t.thread() != 0) return;
        partials[2 * t.block()] = sum;
        partials[2 * t.block() + 1] = bad;
    }
};

struct NormTotal {
    static constexpr bool is_cooperative = true;
    static constexpr int most_threads = 256;
    static constexpr const char* name = "gradient_norm_total";
    std::int64_t chunks;
    const float* partials;
    float* norm;

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        float* scratch = t.template shared<float>();
        float sum = 0, bad = 0;
        for (std::int64_t i = t.thread(); i < chunks; i += t.threads()) {
            sum += partials[2 * i];
            bad += partials[2 * i + 1];
        }
        sum = block_sum(t, sum, scratch);
        bad = block_sum(t, bad, scratch);
        if (t.thread() != 0) return;
        norm[0] = sum;
        norm[1] = bad > 0 ? 1.0f : 0.0f;
    }
};

inline void update(Stream s, UpdateRule rule, Type parameters, Type gradients, const DeviceRange* ranges, const UpdateChunk* chunks, std::int64_t chunk_count,
                   const StepFactors* factors, const float* bad) {
    with_type(parameters, [&](auto p) {
        with_type(gradients, [&](auto g) {
            using P = decltype(p);
            using G = decltype(g);
            if (rule == UpdateRule::adam) launch(s, chunk_count, 256, 0, Update<P, G, true>{ranges, chunks, factors, bad});
            else launch(s, chunk_count, 256, 0, Update<P, G, false>{ranges, chunks, factors, bad});
        });
    });
}

inline void gradient_norm(Stream s, Type gradients, const DeviceRange* ranges, const UpdateChunk* chunks, std::int64_t chunk_count, const StepFactors* factors,
                          float* partials, float* norm) {
    with_type(gradients, [&](auto g) {
        using G = decltype(g);
        launch(s, chunk_count, 256, 32 * sizeof(float), NormPartials<G>{ranges, chunks, factors, partials});
    });
    launch(s, 1, 256, 32 * sizeof(float), NormTotal{chunk_count, partials, norm});
}

inline void fill_update(Kernels& table) {
    table.update = update;
    table.gradient_norm = gradient_norm;
}

}  // namespace exec::cuda::kernel_body
