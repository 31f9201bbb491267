// A mixture of experts as launches: routing, and routed tokens on their way there and back. The experts
// themselves are in operators_experts.cpp.
#include "exec/cuda/operator/operators.h"
#include "model/operators/rank_share.h"

namespace exec::cuda {

using model::OperatorKind;

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
        if (model::parts_of_tokens(o, context_) > 1) {
            chosen = x.saved_context.as<float>();  // by all ranks that divide these tokens
        } else {
            auto* counts = static_cast<float*>(execution_.scratch(counts_slot, a.experts * sizeof(float)));
            kernels_.expert_counts(s, shape, routing(o, x.output.data()), false, counts);
            chosen = counts;
        }
        const double tokens = model::parts_of_loss(o, context_) * shape.tokens,
                     routed_tokens = model::parts_of_tokens(o, context_) * shape.tokens * shape.chosen;
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

}  // namespace exec::cuda
