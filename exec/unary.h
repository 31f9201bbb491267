// The function that an elementwise operator applies, as a backend's own enumeration names it.
#pragma once

#include <string>

#include "core/diagnostics.h"
#include "model/operator.h"

namespace exec {

template <class Unary>
Unary unary_named(model::OperatorKind kind, bool is_tanh_approximation) {
    using model::OperatorKind;
    switch (kind) {
        case OperatorKind::gelu:
        case OperatorKind::gated_gelu: return is_tanh_approximation ? Unary::gelu_tanh : Unary::gelu;
        case OperatorKind::relu: return Unary::relu;
        case OperatorKind::silu:
        case OperatorKind::gated_silu: return Unary::silu;
        case OperatorKind::tanh: return Unary::tanh;
        case OperatorKind::input:
        case OperatorKind::embedding:
        case OperatorKind::position_embedding:
        case OperatorKind::prepend_token:
        case OperatorKind::linear:
        case OperatorKind::layer_norm:
        case OperatorKind::rms_norm:
        case OperatorKind::batch_norm:
        case OperatorKind::attention:
        case OperatorKind::dropout:
        case OperatorKind::add:
        case OperatorKind::conv2d:
        case OperatorKind::max_pool:
        case OperatorKind::average_pool:
        case OperatorKind::flatten:
        case OperatorKind::transpose:
        case OperatorKind::merge_patches:
        case OperatorKind::average_tokens:
        case OperatorKind::select_first_token:
        case OperatorKind::select_positions:
        case OperatorKind::router:
        case OperatorKind::dispatch:
        case OperatorKind::experts:
        case OperatorKind::combine:
        case OperatorKind::parallel_enter:
        case OperatorKind::parallel_exit:
        case OperatorKind::loss_statistics:
        case OperatorKind::cross_entropy:
        case OperatorKind::matrix_product:
        case OperatorKind::elementwise:
        case OperatorKind::softmax:
        case OperatorKind::normalization:
        case OperatorKind::reduce:
        case OperatorKind::concat:
        case OperatorKind::reshape:
        case OperatorKind::permute:
        case OperatorKind::slice:
        case OperatorKind::gather:
        case OperatorKind::pooling:
        case OperatorKind::convolution:
        case OperatorKind::unknown: break;
    }
    throw core::InternalError("no elementwise function belongs to an operator " +
                              std::string(model::name_of(kind)));
}

template <class Unary>
Unary unary_of(const model::Operator& op) {
    return unary_named<Unary>(op.kind, op.attributes.is_tanh_approximation);
}

// The function between the two products of an expert.
template <class Unary>
Unary expert_unary_of(const model::Attributes& mixture) {
    return unary_named<Unary>(mixture.expert_activation, mixture.is_tanh_approximation);
}

}  // namespace exec
