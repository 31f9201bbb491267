// Which function an elementwise operator applies, in a backend's own words.
#pragma once

#include "model/operator.h"

namespace exec {

template <class Unary>
Unary unary_of(const model::Operator& op) {
    switch (op.kind) {
        case model::OperatorKind::gelu:
        case model::OperatorKind::gated_gelu: return op.attributes.is_tanh_approximation ? Unary::gelu_tanh : Unary::gelu;
        case model::OperatorKind::relu: return Unary::relu;
        case model::OperatorKind::silu:
        case model::OperatorKind::gated_silu: return Unary::silu;
        default: return Unary::tanh;
    }
}

}  // namespace exec
