// Optimizer steps over all parameters at once, as PyTorch defines them (torch.optim.SGD, Adam, AdamW), and
// LAMB's as its paper does, on fp32 master weights where there are such.
#pragma once

#include <type_traits>

#include "exec/cuda/body/launch.h"

namespace exec::cuda::kernel_body {

template <class T>
SMSIM_DEVICE bool is_aligned_for(const void* p) {
    return reinterpret_cast<std::uintptr_t>(p) % (4 * sizeof(T)) == 0;
}
// What every update changes of a range; P: the parameters that forward reads.
template <class P>
SMSIM_DEVICE bool are_values_aligned(const DeviceRange& range) {
    return is_aligned_for<P>(range.parameter) && is_aligned_for<float>(range.master) &&
           is_aligned_for<float>(range.first) && is_aligned_for<float>(range.second);
}
// As torch.nn.utils.clip_grad_norm_ has it, with its epsilon.
SMSIM_DEVICE float clipping_factor(const StepFactors& f, const float* squares) {
    constexpr float norm_epsilon = 1e-6f;
    return squares && f.largest_norm < sqrtf(*squares) + norm_epsilon
               ? f.largest_norm / (sqrtf(*squares) + norm_epsilon)
               : 1.0f;
}

// A block's part of a range, shared out over its threads: work(V, i) for V elements from the i-th on, four at
// a time where all arrays lie aligned for that.
template <class Thread, class Work>
SMSIM_DEVICE void over_chunk(const Thread& t, const UpdateChunk& chunk, const DeviceRange& range,
                             bool is_wide, const Work& work) {
    const std::int64_t end =
        chunk.begin + update_chunk < range.count ? chunk.begin + update_chunk : range.count;
    const std::int64_t wide_end = is_wide ? chunk.begin + (end - chunk.begin) / 4 * 4 : chunk.begin;
    for (std::int64_t i = chunk.begin + 4 * t.thread(); i < wide_end; i += 4 * t.threads())
        work(std::integral_constant<int, 4>{}, i);
    for (std::int64_t i = wide_end + t.thread(); i < end; i += t.threads())
        work(std::integral_constant<int, 1>{}, i);
}

// P: the parameters that forward reads, G: gradients. A block takes one chunk of one range, four elements a
// thread where all arrays lie aligned.
template <class P, class G, bool is_adam>
struct Update {
    static constexpr bool is_cooperative = false;
    static constexpr int most_threads = 256;
    static constexpr const char* name = is_adam ? "adam" : "sgd";
    const DeviceRange* ranges;
    const UpdateChunk* chunks;
    const StepFactors* factors;
    const float *bad, *squares;

    struct Rates {
        StepFactors f;
        float weight_decay, keep, clip, unscale;
    };

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        if (bad && *bad != 0.0f) return;
        const UpdateChunk chunk = chunks[t.block()];
        const DeviceRange range = ranges[chunk.range];
        Rates r{*factors, range.weight_decay, 1.0f, 1.0f, 1.0f};
        if (r.f.is_decoupled != 0.0f) r.keep = 1.0f - r.f.learning_rate * range.weight_decay;
        r.clip = clipping_factor(r.f, squares);
        r.unscale = 1.0f / r.f.loss_scale;
        const bool is_wide = are_values_aligned<P>(range) && is_aligned_for<G>(range.gradient);
        over_chunk(t, chunk, range, is_wide,
                   [&](auto width, std::int64_t i) { change<decltype(width)::value>(range, r, i); });
    }

    template <int V>
    SMSIM_DEVICE static void change(const DeviceRange& range, const Rates& r, std::int64_t i) {
        auto* parameters = as<P>(range.parameter) + i;
        auto* gradients = as<G>(range.gradient) + i;
        Pack<G, V> gradient = load<G, V>(gradients);
        Pack<P, V> rounded;
        if (!range.master) rounded = load<P, V>(parameters);
        Pack<float, V> master, first, second;
        if (range.master) master = load<float, V>(range.master + i);
        if (range.first) first = load<float, V>(range.first + i);
        if (range.second) second = load<float, V>(range.second + i);
        for (int j = 0; j < V; ++j) {
            float p = range.master ? master.at[j] : to_float(rounded.at[j]);
            const float clipped = to_float(gradient.at[j]) * r.clip;
            gradient.at[j] = from_float<G>(clipped);
            float g = clipped * r.unscale;
            if constexpr (is_adam) {
                if (r.f.is_decoupled == 0.0f) g += r.weight_decay * p;
                first.at[j] = r.f.beta1 * first.at[j] + r.f.rest1 * g;
                second.at[j] = r.f.beta2 * second.at[j] + r.f.rest2 * g * g;
                p = p * r.keep -
                    r.f.step_size * first.at[j] / (sqrtf(second.at[j]) * r.f.second_correction + r.f.epsilon);
            } else {
                g += r.weight_decay * p;
                if (range.first) g = first.at[j] = r.f.momentum * first.at[j] + g;
                p -= r.f.learning_rate * g;
            }
            master.at[j] = p;
            rounded.at[j] = from_float<P>(p);
        }
        if (range.first) store<float, V>(range.first + i, first);
        if (range.second) store<float, V>(range.second + i, second);
        if (range.master) store<float, V>(range.master + i, master);
        if (r.clip != 1.0f) store<G, V>(gradients, gradient);
        store<P, V>(parameters, rounded);
    }
};

// LAMB's update of one element before the trust ratio; `x` is its value.
SMSIM_DEVICE float lamb_update(const StepFactors& f, float weight_decay, float x, float first, float second) {
    return first * f.step_size / (sqrtf(second) * f.second_correction + f.epsilon) + weight_decay * x;
}

// A block takes one chunk of one range, as above: moments, and two partial sums.
template <class P, class G>
struct LambPartials {
    static constexpr bool is_cooperative = true;
    static constexpr int most_threads = 256;
    static constexpr const char* name = "lamb_norms";
    const DeviceRange* ranges;
    const UpdateChunk* chunks;
    const StepFactors* factors;
    const float *bad, *squares;
    float* partials;

    struct Squares {
        float values = 0, updates = 0;
    };

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        if (bad && *bad != 0.0f) return;
        float* scratch = t.template shared<float>();
        const UpdateChunk chunk = chunks[t.block()];
        const DeviceRange range = ranges[chunk.range];
        const StepFactors f = *factors;
        const float clip = clipping_factor(f, squares);
        const bool is_wide = are_values_aligned<P>(range) && is_aligned_for<G>(range.gradient);
        Squares sums;
        over_chunk(t, chunk, range, is_wide, [&](auto width, std::int64_t i) {
            take<decltype(width)::value>(range, f, clip, i, sums);
        });
        const float values = block_sum(t, sums.values, scratch),
                    updates = block_sum(t, sums.updates, scratch);
        if (t.thread() != 0) return;
        partials[2 * t.block()] = values;
        partials[2 * t.block() + 1] = updates;
    }

    template <int V>
    SMSIM_DEVICE static void take(const DeviceRange& range, const StepFactors& f, float clip, std::int64_t i,
                                  Squares& sums) {
        auto* gradients = as<G>(range.gradient) + i;
        Pack<G, V> gradient = load<G, V>(gradients);
        Pack<P, V> rounded;
        Pack<float, V> master;
        if (range.master) master = load<float, V>(range.master + i);
        else rounded = load<P, V>(as<const P>(range.parameter) + i);
        Pack<float, V> first = load<float, V>(range.first + i), second = load<float, V>(range.second + i);
        const float unscale = 1.0f / f.loss_scale;
        for (int j = 0; j < V; ++j) {
            const float x = range.master ? master.at[j] : to_float(rounded.at[j]);
            const float clipped = to_float(gradient.at[j]) * clip;
            gradient.at[j] = from_float<G>(clipped);
            const float g = clipped * unscale;
            first.at[j] = f.beta1 * first.at[j] + f.rest1 * g;
            second.at[j] = f.beta2 * second.at[j] + f.rest2 * g * g;
            const float u = lamb_update(f, range.weight_decay, x, first.at[j], second.at[j]);
            sums.values += x * x;
            sums.updates += u * u;
        }
        store<float, V>(range.first + i, first);
        store<float, V>(range.second + i, second);
        if (clip != 1.0f) store<G, V>(gradients, gradient);
    }
};

// A block adds up the chunks of one range.
struct LambTotals {
    static constexpr bool is_cooperative = true;
    static constexpr int most_threads = 256;
    static constexpr const char* name = "lamb_norms_total";
    const DeviceRange* ranges;
    const float *bad, *partials;
    float* sums;

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        if (bad && *bad != 0.0f) return;
        float* scratch = t.template shared<float>();
        const DeviceRange range = ranges[t.block()];
        const std::int64_t end = range.first_chunk + (range.count + update_chunk - 1) / update_chunk;
        float values = 0, updates = 0;
        for (std::int64_t c = range.first_chunk + t.thread(); c < end; c += t.threads()) {
            values += partials[2 * c];
            updates += partials[2 * c + 1];
        }
        values = block_sum(t, values, scratch);
        updates = block_sum(t, updates, scratch);
        if (t.thread() != 0) return;
        sums[2 * range.place] = range.is_counted ? values : 0.0f;
        sums[2 * range.place + 1] = range.is_counted ? updates : 0.0f;
    }
};

template <class P>
struct LambStep {
    static constexpr bool is_cooperative = false;
    static constexpr int most_threads = 256;
    static constexpr const char* name = "lamb";
    const DeviceRange* ranges;
    const UpdateChunk* chunks;
    const StepFactors* factors;
    const float *bad, *sums;

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        if (bad && *bad != 0.0f) return;
        const UpdateChunk chunk = chunks[t.block()];
        const DeviceRange range = ranges[chunk.range];
        const StepFactors f = *factors;
        const float values = sums[2 * range.place], updates = sums[2 * range.place + 1];
        const float rate =
            f.learning_rate * (values > 0 && updates > 0 ? sqrtf(values) / sqrtf(updates) : 1.0f);
        over_chunk(t, chunk, range, are_values_aligned<P>(range),
                   [&](auto width, std::int64_t i) { change<decltype(width)::value>(range, f, rate, i); });
    }

    template <int V>
    SMSIM_DEVICE static void change(const DeviceRange& range, const StepFactors& f, float rate,
                                    std::int64_t i) {
        auto* parameters = as<P>(range.parameter) + i;
        Pack<P, V> rounded;
        Pack<float, V> master;
        if (range.master) master = load<float, V>(range.master + i);
        else rounded = load<P, V>(parameters);
        const Pack<float, V> first = load<float, V>(range.first + i),
                             second = load<float, V>(range.second + i);
        for (int j = 0; j < V; ++j) {
            float x = range.master ? master.at[j] : to_float(rounded.at[j]);
            x -= rate * lamb_update(f, range.weight_decay, x, first.at[j], second.at[j]);
            master.at[j] = x;
            rounded.at[j] = from_float<P>(x);
        }
        if (range.master) store<float, V>(range.master + i, master);
        store<P, V>(parameters, rounded);
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
        const auto* gradients = as<const G>(range.gradient);
        const std::int64_t end =
            chunk.begin + update_chunk < range.count ? chunk.begin + update_chunk : range.count;
        const float unscale = 1.0f / factors->loss_scale;
        float sum = 0, bad = 0;
        const auto take = [&](G gradient) {
            const float g = to_float(gradient);
            if (!(fabsf(g) <= 3.402823466e38f)) bad = 1;
            sum += g * unscale * (g * unscale);
        };
        constexpr int V = 16 / sizeof(G);
        const bool is_wide = reinterpret_cast<std::uintptr_t>(gradients) % 16 == 0;
        const std::int64_t wide_end = is_wide ? chunk.begin + (end - chunk.begin) / V * V : chunk.begin;
        SMSIM_UNROLL_4
        for (std::int64_t i = chunk.begin + V * t.thread(); i < wide_end; i += V * t.threads()) {
            const Pack<G, V> pack = load<G, V>(gradients + i);
            SMSIM_UNROLL
            for (int j = 0; j < V; ++j) take(pack.at[j]);
        }
        for (std::int64_t i = wide_end + t.thread(); i < end; i += t.threads()) take(gradients[i]);
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

inline void update(Stream s, UpdateRule rule, Type parameters, Type gradients, const DeviceRange* ranges,
                   const UpdateChunk* chunks, std::int64_t chunk_count, const StepFactors* factors,
                   const float* bad, const float* squares) {
    with_type(parameters, [&](auto p) {
        with_type(gradients, [&](auto g) {
            using P = decltype(p);
            using G = decltype(g);
            if (rule == UpdateRule::adam)
                launch(s, chunk_count, 256, 0, Update<P, G, true>{ranges, chunks, factors, bad, squares});
            else launch(s, chunk_count, 256, 0, Update<P, G, false>{ranges, chunks, factors, bad, squares});
        });
    });
}

inline void update_norms(Stream s, Type parameters, Type gradients, const DeviceRange* ranges,
                         std::int64_t range_count, const UpdateChunk* chunks, std::int64_t chunk_count,
                         const StepFactors* factors, const float* bad, const float* squares, float* partials,
                         float* sums) {
    with_type(parameters, [&](auto p) {
        with_type(gradients, [&](auto g) {
            using P = decltype(p);
            using G = decltype(g);
            launch(s, chunk_count, 256, 32 * sizeof(float),
                   LambPartials<P, G>{ranges, chunks, factors, bad, squares, partials});
        });
    });
    launch(s, range_count, 256, 32 * sizeof(float), LambTotals{ranges, bad, partials, sums});
}

inline void lamb(Stream s, Type parameters, const DeviceRange* ranges, const UpdateChunk* chunks,
                 std::int64_t chunk_count, const StepFactors* factors, const float* bad, const float* sums) {
    with_type(parameters, [&](auto p) {
        launch(s, chunk_count, 256, 0, LambStep<decltype(p)>{ranges, chunks, factors, bad, sums});
    });
}

inline void gradient_norm(Stream s, Type gradients, const DeviceRange* ranges, const UpdateChunk* chunks,
                          std::int64_t chunk_count, const StepFactors* factors, float* partials,
                          float* norm) {
    with_type(gradients, [&](auto g) {
        using G = decltype(g);
        launch(s, chunk_count, 256, 32 * sizeof(float), NormPartials<G>{ranges, chunks, factors, partials});
    });
    launch(s, 1, 256, 32 * sizeof(float), NormTotal{chunk_count, partials, norm});
}

inline void fill_update(Kernels& table) {
    table.update = update;
    table.update_norms = update_norms;
    table.lamb = lamb;
    table.gradient_norm = gradient_norm;
}

}  // namespace exec::cuda::kernel_body
