// A mixture of experts as launches: routing, routed tokens, and a product for each block of routed tokens
// that go to one expert.
//
// How many routed tokens an expert gets is known on the device only, and the sizes of products on the host
// only: forward waits for these numbers, once for each mixture and micro-batch. Backward has them.
#include <numeric>

#include "exec/cuda/operator/operators.h"
#include "exec/expert_blocks.h"
#include "exec/unary.h"
#include "model/operators/rank_share.h"

namespace exec::cuda {

using model::OperatorKind;

namespace {

std::int64_t total_of(const std::vector<std::int64_t>& rows) {
    return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

}  // namespace

std::vector<std::int64_t> divided_evenly(std::int64_t routed_tokens, std::size_t blocks) {
    const auto count = static_cast<std::int64_t>(blocks);
    std::vector<std::int64_t> rows(blocks, routed_tokens / count);
    for (std::int64_t b = 0; b < routed_tokens % count; ++b) ++rows[b];
    return rows;
}

RoutingShape Operators::routing_shape(const model::Operator& o) const {
    const model::MixtureShape shape = model::mixture_shape(graph_, o, context_);
    return {shape.tokens, o.attributes.experts, o.attributes.experts_per_token, shape.hidden,
            model::expert_capacity(o.attributes, shape.tokens)};
}

const void* Operators::routing(const model::Operator& o, const void* probabilities) const {
    const RoutingShape shape = routing_shape(o);
    void* routing = execution_.scratch(routing_slot, routing_workspace(shape));
    kernels_.route(execution_.stream(), type_, shape, probabilities, routing);
    return routing;
}

void Operators::count_rows(model::OperatorId dispatch, const void* probabilities, float* counts) const {
    kernels_.expert_counts(execution_.stream(), routing_shape(op(dispatch)),
                           routing(op(dispatch), probabilities), true, counts);
}

void Operators::choices(model::OperatorId router, const Operands& x, TensorView all) const {
    kernels_.expert_counts(execution_.stream(), routing_shape(op(router)),
                           routing(op(router), x.output.data()), false, all.floats());
}

// Forward asks, backward knows.
std::vector<std::int64_t> Operators::rows_of_experts(model::OperatorId id, const Operands& x,
                                                     bool is_forward) const {
    if (x.expert_rows) return *x.expert_rows;
    std::vector<std::int64_t>& rows = kept_rows_[{id.index, x.place->micro_batch}];
    if (!is_forward) return rows;
    const model::Operator& o = op(id);
    const std::size_t experts = o.attributes.experts;
    auto* counts = static_cast<float*>(execution_.scratch(counts_slot, experts * sizeof(float)));
    kernels_.expert_counts(execution_.stream(), routing_shape(o), routing(o, x.inputs[1].data()), true,
                           counts);
    const std::vector<float> fetched = execution_.fetch(counts, experts);
    if (fetched.empty())
        rows = divided_evenly(model::mixture_shape(graph_, o, context_).routed_tokens, experts);
    else rows.assign(fetched.begin(), fetched.end());
    return rows;
}

// Logits in fp32, as the CPU has them: close calls would be called otherwise in half precision.
void Operators::router(const model::Operator& o, const Operands& x) const {
    const RoutingShape shape = routing_shape(o);
    const Stream s = execution_.stream();
    auto* logits =
        static_cast<float*>(execution_.scratch(logits_slot, (shape.tokens * shape.experts) * sizeof(float)));
    Product p = product();
    p.out = Type::fp32;
    p.transpose_b = true;
    p.m = shape.tokens;
    p.n = shape.experts;
    p.k = shape.hidden;
    p.a = x.inputs[0].data();
    p.b = weight(x.parameters[0], weight_slot);
    p.lda = p.ldb = shape.hidden;
    p.c = logits;
    p.ldc = shape.experts;
    machine_.product(s, p);
    kernels_.router_softmax(s, type_, shape.tokens, shape.experts, logits, x.output.data());
}

const void* Operators::router_gradient(const model::Operator& o, const Operands& x, const void* dy) const {
    const RoutingShape shape = routing_shape(o);
    const Stream s = execution_.stream();
    const model::Attributes& a = o.attributes;
    const float* chosen = nullptr;
    float balance = 0;
    if (a.auxiliary_loss > 0 && (!o.in_parallel_region || tensor_rank_ == 0)) {
        if (context_.context_parallel > 1) {
            chosen = x.saved_context.as<float>();  // by all ranks that divide these tokens
        } else {
            auto* counts = static_cast<float*>(execution_.scratch(counts_slot, a.experts * sizeof(float)));
            kernels_.expert_counts(s, shape, routing(o, x.output.data()), false, counts);
            chosen = counts;
        }
        const double tokens = shape.tokens,
                     routed_tokens = context_.context_parallel * shape.tokens * shape.chosen;
        balance =
            static_cast<float>(x.place->loss_weight * a.auxiliary_loss * a.experts / routed_tokens / tokens);
    }
    void* gradient = execution_.scratch(gradient_slot, (shape.tokens * shape.experts) * size_of(type_));
    kernels_.router_gradient(s, type_, shape.tokens, shape.experts, balance, execution_.factors(), chosen,
                             x.output.data(), dy, gradient);
    return gradient;
}

void Operators::router_backward(const model::Operator& o, const Operands& x, const void* dy,
                                const TensorView& dx) const {
    const RoutingShape shape = routing_shape(o);
    Product p = product();
    p.m = shape.tokens;
    p.n = shape.hidden;
    p.k = shape.experts;
    p.a = router_gradient(o, x, dy);
    p.lda = shape.experts;
    p.b = weight(x.parameters[0], weight_slot);
    p.ldb = shape.hidden;
    p.c = dx.data();
    p.ldc = shape.hidden;
    p.accumulates = accumulates(dx);
    machine_.product(execution_.stream(), p);
}

void Operators::router_weights(const model::Operator& o, const Operands& x, const void* dy,
                               const TensorView& dweight) const {
    const RoutingShape shape = routing_shape(o);
    Product p = product();
    p.out = gradient_type_;
    p.transpose_a = true;
    p.m = shape.experts;
    p.n = shape.hidden;
    p.k = shape.tokens;
    p.a = router_gradient(o, x, dy);
    p.lda = shape.experts;
    p.b = x.inputs[0].data();
    p.ldb = shape.hidden;
    p.c = dweight.data();
    p.ldc = shape.hidden;
    p.accumulates = sums(dweight).accumulates;
    machine_.product(execution_.stream(), p);
}

void Operators::dispatch(const model::Operator& o, const Operands& x) const {
    const RoutingShape shape = routing_shape(o);
    const Stream s = execution_.stream();
    if (shape.capacity < shape.tokens)
        machine_.fill_zero(s, x.output.data(), x.output.bytes());  // what capacity leaves empty
    kernels_.dispatch(s, type_, shape, routing(o, x.inputs[1].data()), x.inputs[0].data(), x.output.data());
}

void Operators::combine_backward(const model::Operator& o, const Operands& x, const void* dy,
                                 const std::vector<TensorView>& dx) const {
    const RoutingShape shape = routing_shape(o);
    bool adds = true;
    if (dx[0] && shape.capacity < shape.tokens) {  // rows without a routed token stay clear
        execution_.clear_zeros(dx[0].data(), dx[0].bytes());
        fusion_->copy_now(dx[0].data());
    } else if (dx[0]) {
        adds = accumulates(dx[0]);
    }
    if (dx[1]) {
        execution_.clear_zeros(dx[1].data(), dx[1].bytes());
        fusion_->copy_now(dx[1].data());
    }
    kernels_.combine_backward(execution_.stream(), type_, shape, routing(o, x.inputs[1].data()),
                              x.inputs[0].data(), x.inputs[1].data(), dy, dx[0].data(), dx[1].data(), adds);
}

void Operators::experts(model::OperatorId id, const Operands& x) const {
    const model::Operator& o = op(id);
    const model::MixtureShape shape = model::mixture_shape(graph_, o, context_);
    const std::vector<std::int64_t> rows = rows_of_experts(id, x, true);
    const std::int64_t total = total_of(rows);
    const Stream s = execution_.stream();
    const void *first_weights = weight(x.parameters[0], weight_slot),
               *second_weights = weight(x.parameters[1], second_weight_slot);
    void *first = x.saved_context.data(),
         *activated = at(x.saved_context.data(), total * shape.first_width, type_);
    if (total == 0) return;
    Product p = product();
    p.ragged_limit = total;
    p.transpose_b = true;
    for (const ExpertBlock& b : expert_blocks(rows, shape.experts)) {
        p.m = b.rows;
        p.n = shape.first_width;
        p.k = p.lda = p.ldb = shape.hidden;
        p.a = at(x.inputs[0].data(), b.first * shape.hidden, type_);
        p.b = at(first_weights, b.expert * shape.first_width * shape.hidden, type_);
        p.c = at(first, b.first * shape.first_width, type_);
        p.ldc = p.n;
        machine_.product(s, p);
    }
    if (o.attributes.experts_are_gated)
        kernels_.gated(s, type_, expert_unary_of<Unary>(o.attributes), total, shape.width, first, activated);
    else
        kernels_.unary(s, type_, expert_unary_of<Unary>(o.attributes), total * shape.width, first, activated);
    for (const ExpertBlock& b : expert_blocks(rows, shape.experts)) {
        p.m = b.rows;
        p.n = shape.hidden;
        p.k = p.lda = p.ldb = shape.width;
        p.a = at(activated, b.first * shape.width, type_);
        p.b = at(second_weights, b.expert * shape.hidden * shape.width, type_);
        p.c = at(x.output.data(), b.first * shape.hidden, type_);
        p.ldc = p.n;
        machine_.product(s, p);
    }
}

// Leaves the gradient of the first product in the saved context, in its place: the weights' gradients need
// that one.
void Operators::experts_backward(model::OperatorId id, const Operands& x, const void* dy,
                                 const TensorView& dx) const {
    const model::Operator& o = op(id);
    const model::MixtureShape shape = model::mixture_shape(graph_, o, context_);
    const std::vector<std::int64_t> rows = rows_of_experts(id, x, false);
    const std::int64_t total = total_of(rows);
    const Stream s = execution_.stream();
    const void *first_weights = weight(x.parameters[0], weight_slot),
               *second_weights = weight(x.parameters[1], second_weight_slot);
    void *first = x.saved_context.data(),
         *activated = at(x.saved_context.data(), total * shape.first_width, type_);
    void* dactivated = execution_.scratch(expert_slot, (total * shape.width) * size_of(type_));
    const bool adds = dx && !execution_.takes_over_zeros(dx.data(), (total * shape.hidden) * size_of(type_));
    if (adds) fusion_->copy_now(dx.data());
    if (total == 0) return;
    Product p = product();
    p.ragged_limit = total;
    for (const ExpertBlock& b : expert_blocks(rows, shape.experts)) {
        p.m = b.rows;
        p.n = p.ldb = shape.width;
        p.k = p.lda = shape.hidden;
        p.a = at(dy, b.first * shape.hidden, type_);
        p.b = at(second_weights, b.expert * shape.hidden * shape.width, type_);
        p.c = at(dactivated, b.first * shape.width, type_);
        p.ldc = p.n;
        machine_.product(s, p);
    }
    const Unary unary = expert_unary_of<Unary>(o.attributes);
    if (o.attributes.experts_are_gated)
        kernels_.gated_backward(s, type_, unary, total, shape.width, first, dactivated, first, false);
    else
        kernels_.unary_backward(s, type_, unary, total * shape.width,
                                unary == Unary::relu ? activated : first, dactivated, first, false);
    for (const ExpertBlock& b : expert_blocks(rows, shape.experts)) {
        if (!dx) break;
        p.m = b.rows;
        p.n = p.ldb = shape.hidden;
        p.k = p.lda = shape.first_width;
        p.a = at(first, b.first * shape.first_width, type_);
        p.b = at(first_weights, b.expert * shape.first_width * shape.hidden, type_);
        p.c = at(dx.data(), b.first * shape.hidden, type_);
        p.ldc = p.n;
        p.accumulates = adds;
        machine_.product(s, p);
    }
}

void Operators::experts_weights(model::OperatorId id, const Operands& x, const void* dy,
                                const std::vector<TensorView>& dparameters) const {
    const model::Operator& o = op(id);
    const model::MixtureShape shape = model::mixture_shape(graph_, o, context_);
    const std::vector<std::int64_t> rows = rows_of_experts(id, x, false);
    const Stream s = execution_.stream();
    const std::int64_t total = total_of(rows);
    const void *first = x.saved_context.data(),
               *activated = at(x.saved_context.data(), total * shape.first_width, type_);
    // c += a^T b over the rows of every block; an expert that no token chose has a gradient of zeros.
    const auto add_up = [&](std::size_t parameter, const void* a, std::int64_t m, const void* b,
                            std::int64_t n) {
        const bool adds = sums(dparameters[parameter]).accumulates;
        std::vector<char> is_written(shape.experts, adds ? 1 : 0);
        Product p = product();
        p.ragged_limit = total;
        p.out = gradient_type_;
        p.transpose_a = true;
        p.m = p.lda = m;
        p.n = p.ldb = p.ldc = n;
        for (const ExpertBlock& block : expert_blocks(rows, shape.experts)) {
            char& written = is_written[block.expert];
            p.k = block.rows;
            p.a = at(a, block.first * m, type_);
            p.b = at(b, block.first * n, type_);
            p.c = at(dparameters[parameter].data(), block.expert * m * n, gradient_type_);
            p.accumulates = written != 0;
            written = 1;
            machine_.product(s, p);
        }
        for (std::int64_t e = 0; e < shape.experts; ++e)
            if (!is_written[e])
                machine_.fill_zero(s, at(dparameters[parameter].data(), e * m * n, gradient_type_),
                                   (m * n) * size_of(gradient_type_));
    };
    add_up(0, first, shape.first_width, x.inputs[0].data(), shape.hidden);
    add_up(1, dy, shape.hidden, activated, shape.width);
}

}  // namespace exec::cuda
