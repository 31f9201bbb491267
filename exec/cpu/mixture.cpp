#include "exec/cpu/mixture.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "exec/cpu/kernels.h"
#include "exec/expert_blocks.h"
#include "exec/unary.h"

namespace exec::cpu {

namespace {

using model::OperatorKind;

Routing routing_of(const MixtureTask& task, const Operands& x) {
    return route(task.attributes, task.shape.tokens, x.inputs[1].floats());
}

// Gradient of the router's logits: through the softmax, with the balance loss's own share.
std::vector<float> logit_gradients(const MixtureTask& task, const Operands& x, const float* dy) {
    const std::int64_t tokens = task.shape.tokens, experts = task.attributes.experts;
    std::vector<float> balance(experts, 0.0f);
    if (task.has_auxiliary_loss && task.attributes.auxiliary_loss > 0) {
        const auto* const of_all = task.ranks > 1 ? x.saved_context.as<float>() : nullptr;
        const Routing routing = of_all ? Routing() : route(task.attributes, tokens, x.output.floats());
        const double copies = task.ranks * tokens * task.attributes.experts_per_token;
        for (std::int64_t e = 0; e < experts; ++e) {
            double chosen = 0;
            if (of_all) chosen = of_all[e];
            else chosen = routing.chosen[e];
            balance[e] = static_cast<float>(x.place->loss_weight * task.attributes.auxiliary_loss * experts *
                                            chosen / copies / (task.ranks_of_loss * tokens));
        }
    }
    std::vector<float> gradients(tokens * experts);
    for (std::int64_t t = 0; t < tokens; ++t) {
        const float *p = x.output.floats() + t * experts, *g = dy + t * experts;
        float sum = 0;
        for (std::int64_t e = 0; e < experts; ++e) sum += p[e] * (g[e] + balance[e]);
        for (std::int64_t e = 0; e < experts; ++e)
            gradients[t * experts + e] = p[e] * (g[e] + balance[e] - sum);
    }
    return gradients;
}

struct ExpertWork {
    std::vector<ExpertBlock> blocks;
    std::int64_t rows = 0, width = 0, first_width = 0, hidden = 0;
    // [rows, first_width], [rows, width]: the operator's saved context, or that and its late one.
    float *first = nullptr, *activated = nullptr;
    bool remakes_activation = false;
};

ExpertWork work_of(const MixtureTask& task, const Operands& x) {
    ExpertWork work;
    const std::vector<std::int64_t> own =
        x.expert_rows ? std::vector<std::int64_t>() : routing_of(task, x).rows;
    const std::vector<std::int64_t>& rows = x.expert_rows ? *x.expert_rows : own;
    work.blocks = expert_blocks(rows, task.shape.experts);
    work.rows = std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
    work.width = task.shape.width;
    work.first_width = task.shape.first_width;
    work.hidden = task.shape.hidden;
    work.first = x.saved_context.as<float>();
    work.remakes_activation = bool(x.late_context);
    work.activated =
        work.remakes_activation ? x.late_context.as<float>() : work.first + work.rows * work.first_width;
    return work;
}

void activate(const MixtureTask& task, std::int64_t rows, std::int64_t width, const float* first,
              float* activated) {
    const Unary unary = expert_unary_of<Unary>(task.attributes);
    if (task.attributes.experts_are_gated) kernels().gated(unary, rows, width, first, activated);
    else kernels().unary(unary, rows * width, first, activated);
}

}  // namespace

Routing route(const model::Attributes& mixture, std::int64_t tokens, const float* probabilities) {
    const std::int64_t experts = mixture.experts, k = mixture.experts_per_token;
    Routing routing;
    routing.expert.resize(tokens * k);
    routing.weight.resize(tokens * k);
    routing.row.assign(tokens * k, -1);
    routing.chosen.assign(experts, 0);
    routing.rows.assign(experts, 0);
    std::vector<std::int32_t> order(experts);
    for (std::int64_t t = 0; t < tokens; ++t) {
        const float* p = probabilities + t * experts;
        std::iota(order.begin(), order.end(), 0);
        std::partial_sort(order.begin(), order.begin() + k, order.end(),
                          [&](std::int32_t a, std::int32_t b) { return p[a] != p[b] ? p[a] > p[b] : a < b; });
        float sum = 0;
        for (std::int64_t j = 0; j < k; ++j) sum += p[order[j]];
        for (std::int64_t j = 0; j < k; ++j) {
            routing.expert[t * k + j] = order[j];
            routing.weight[t * k + j] = k > 1 ? p[order[j]] / sum : p[order[j]];
            ++routing.chosen[order[j]];
        }
    }
    const std::int64_t capacity = model::expert_capacity(mixture, tokens);
    std::vector<std::int64_t> first(experts, 0);
    for (std::int64_t e = 0; e < experts; ++e) {
        routing.rows[e] = std::min(routing.chosen[e], capacity);
        if (e > 0) first[e] = first[e - 1] + routing.rows[e - 1];
    }
    std::vector<std::int64_t> taken(experts, 0);
    for (std::int64_t j = 0; j < k; ++j)
        for (std::int64_t t = 0; t < tokens; ++t) {
            const auto e = routing.expert[t * k + j];
            if (taken[e] < capacity) routing.row[t * k + j] = first[e] + taken[e]++;
        }
    return routing;
}

void router(const MixtureTask& task, const Operands& x) {
    const std::int64_t tokens = task.shape.tokens, experts = task.attributes.experts,
                       hidden = task.shape.hidden;
    kernels().product(false, true, tokens, experts, hidden, 1, x.inputs[0].floats(), hidden,
                      x.parameters[0].floats(), hidden, x.output.floats(), experts, false);
    for (std::int64_t t = 0; t < tokens; ++t) {
        float *row = x.output.floats() + t * experts, sum = 0;
        const float maximum = *std::max_element(row, row + experts);
        for (std::int64_t e = 0; e < experts; ++e) sum += row[e] = std::exp(row[e] - maximum);
        for (std::int64_t e = 0; e < experts; ++e) row[e] /= sum;
    }
}

void router_backward(const MixtureTask& task, const Operands& x, const float* dy, float* dx, float* dweight) {
    const std::int64_t tokens = task.shape.tokens, experts = task.attributes.experts,
                       hidden = task.shape.hidden;
    const std::vector<float> gradients = logit_gradients(task, x, dy);
    if (dx)
        kernels().product(false, false, tokens, hidden, experts, 1, gradients.data(), experts,
                          x.parameters[0].floats(), hidden, dx, hidden, true);
    if (dweight)
        kernels().product(true, false, experts, hidden, tokens, 1, gradients.data(), experts,
                          x.inputs[0].floats(), hidden, dweight, hidden, true);
}

void dispatch(const MixtureTask& task, const Operands& x) {
    const std::int64_t hidden = task.shape.hidden, k = task.attributes.experts_per_token;
    const Routing routing = routing_of(task, x);
    const std::int64_t rows = std::accumulate(routing.rows.begin(), routing.rows.end(), std::int64_t{0});
    for (std::int64_t copy = 0; copy < task.shape.tokens * k; ++copy)
        if (const std::int64_t row = routing.row[copy]; row >= 0)
            std::memcpy(x.output.floats() + row * hidden, x.inputs[0].floats() + copy / k * hidden,
                        hidden * sizeof(float));
    std::fill(x.output.floats() + rows * hidden, x.output.floats() + task.shape.tokens * k * hidden,
              0.0f);  // what capacity left empty
}

void dispatch_backward(const MixtureTask& task, const Operands& x, const float* dy, float* dx) {
    const std::int64_t hidden = task.shape.hidden, k = task.attributes.experts_per_token;
    const Routing routing = routing_of(task, x);
    for (std::int64_t copy = 0; copy < task.shape.tokens * k; ++copy)
        if (const std::int64_t row = routing.row[copy]; row >= 0)
            kernels().accumulate(hidden, dy + row * hidden, dx + copy / k * hidden);
}

void experts(const MixtureTask& task, const Operands& x) {
    const ExpertWork w = work_of(task, x);
    const Kernels& k = kernels();
    for (const ExpertBlock& b : w.blocks) {
        float *first = w.first + b.first * w.first_width, *activated = w.activated + b.first * w.width;
        k.product(false, true, b.rows, w.first_width, w.hidden, 1, x.inputs[0].floats() + b.first * w.hidden,
                  w.hidden, x.parameters[0].floats() + b.expert * w.first_width * w.hidden, w.hidden, first,
                  w.first_width, false);
        activate(task, b.rows, w.width, first, activated);
        k.product(false, true, b.rows, w.hidden, w.width, 1, activated, w.width,
                  x.parameters[1].floats() + b.expert * w.hidden * w.width, w.width,
                  x.output.floats() + b.first * w.hidden, w.hidden, false);
    }
}

void experts_backward(const MixtureTask& task, const Operands& x, const float* dy, float* dx) {
    const ExpertWork w = work_of(task, x);
    const Kernels& k = kernels();
    std::int64_t most = 0;
    for (const ExpertBlock& b : w.blocks) most = std::max(most, b.rows);
    float *dactivated = scratch(0, most * w.width), *dfirst = scratch(1, most * w.first_width);
    for (const ExpertBlock& b : w.blocks) {
        float *first = w.first + b.first * w.first_width, *activated = w.activated + b.first * w.width;
        if (w.remakes_activation) activate(task, b.rows, w.width, first, activated);
        k.product(false, false, b.rows, w.width, w.hidden, 1, dy + b.first * w.hidden, w.hidden,
                  x.parameters[1].floats() + b.expert * w.hidden * w.width, w.width, dactivated, w.width,
                  false);
        std::fill_n(dfirst, b.rows * w.first_width, 0.0f);
        const Unary unary = expert_unary_of<Unary>(task.attributes);
        if (task.attributes.experts_are_gated)
            k.gated_backward(unary, b.rows, w.width, first, dactivated, dfirst);
        else
            k.unary_backward(unary, b.rows * w.width, unary == Unary::relu ? activated : first, dactivated,
                             dfirst);
        if (dx)
            k.product(false, false, b.rows, w.hidden, w.first_width, 1, dfirst, w.first_width,
                      x.parameters[0].floats() + b.expert * w.first_width * w.hidden, w.hidden,
                      dx + b.first * w.hidden, w.hidden, true);
        // The weights' gradients need this one and not the product itself any more.
        std::memcpy(first, dfirst, b.rows * w.first_width * sizeof(float));
    }
}

void experts_weights(const MixtureTask& task, const Operands& x, const float* dy, float* dfirst,
                     float* dsecond) {
    const ExpertWork w = work_of(task, x);
    const Kernels& k = kernels();
    for (const ExpertBlock& b : w.blocks) {
        k.product(true, false, w.hidden, w.width, b.rows, 1, dy + b.first * w.hidden, w.hidden,
                  w.activated + b.first * w.width, w.width, dsecond + b.expert * w.hidden * w.width, w.width,
                  true);
        k.product(true, false, w.first_width, w.hidden, b.rows, 1, w.first + b.first * w.first_width,
                  w.first_width, x.inputs[0].floats() + b.first * w.hidden, w.hidden,
                  dfirst + b.expert * w.first_width * w.hidden, w.hidden, true);
    }
}

void combine(const MixtureTask& task, const Operands& x) {
    const std::int64_t hidden = task.shape.hidden, k = task.attributes.experts_per_token;
    const Routing routing = routing_of(task, x);
    std::fill_n(x.output.floats(), task.shape.tokens * hidden, 0.0f);
    for (std::int64_t copy = 0; copy < task.shape.tokens * k; ++copy) {
        const std::int64_t row = routing.row[copy];
        if (row < 0) continue;
        const float *from = x.inputs[0].floats() + row * hidden, weight = routing.weight[copy];
        float* to = x.output.floats() + copy / k * hidden;
        for (std::int64_t i = 0; i < hidden; ++i) to[i] += weight * from[i];
    }
}

void combine_backward(const MixtureTask& task, const Operands& x, const float* dy, float* dx,
                      float* dprobabilities) {
    const std::int64_t hidden = task.shape.hidden, k = task.attributes.experts_per_token,
                       experts = task.attributes.experts;
    const Routing routing = routing_of(task, x);
    std::vector<float> dweight(k);
    for (std::int64_t t = 0; t < task.shape.tokens; ++t) {
        const float *gradient = dy + t * hidden, *p = x.inputs[1].floats() + t * experts;
        float mean = 0, sum = 0;
        for (std::int64_t j = 0; j < k; ++j) {
            const auto copy = t * k + j;
            const std::int64_t row = routing.row[copy];
            sum += p[routing.expert[copy]];
            dweight[j] = 0;
            if (row < 0) continue;
            const float* worked = x.inputs[0].floats() + row * hidden;
            for (std::int64_t i = 0; i < hidden; ++i) {
                dweight[j] += gradient[i] * worked[i];
                if (dx) dx[row * hidden + i] += routing.weight[copy] * gradient[i];
            }
            mean += dweight[j] * routing.weight[copy];
        }
        for (std::int64_t j = 0; j < k && dprobabilities; ++j)
            dprobabilities[t * experts + routing.expert[t * k + j]] +=
                k > 1 ? (dweight[j] - mean) / sum : dweight[j];
    }
}

}  // namespace exec::cpu
