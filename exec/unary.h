// Which function an elementwise operator applies, in a backend's own words.
#pragma once

#include "model/operator.h"

namespace exec {

template <class Unary>
Unary unary_named(model::OperatorKind kind, bool is_tanh_approximation) {
    switch (kind) {
        case model::OperatorKind::gelu:
        case model::OperatorKind::gated_gelu: return is_tanh_approximation ? Unary::gelu_tanh : Unary::gelu;
        case model::OperatorKind::relu: return Unary::relu;
        case model::OperatorKind::silu:
        case model::OperatorKind::gated_silu: return Unary::silu;
        default: return Unary::tanh;
    }
}

template <class Unary>
Unary unary_of(const model::Operator& op) {
    return unary_named<Unary>(op.kind, op.attributes.is_tanh_approximation);
}

// Between the two products of an expert.
template <class Unary>
Unary expert_unary_of(const model::Attributes& mixture) {
    return unary_named<Unary>(mixture.expert_activation, mixture.is_tanh_approximation);
}

}  // namespace exec
