// What the CPU backend has no kernels for. Apart from the kernels: a planner that asks what would run needs
// none of them, nor does one in a browser.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include <fmt/core.h>

#include "core/errors.h"
#include "core/unsupported.h"
#include "exec/cpu/backend.h"
#include "exec/cpu/low_precision.h"
#include "exec/cpu/operators.h"

namespace exec::cpu {

using model::OperatorKind;

namespace {

// Says of every kind whether this backend has kernels for it: a new kind does not compile until it is listed.
bool has_kernel(OperatorKind kind) {
    switch (kind) {
        case OperatorKind::input:
        case OperatorKind::embedding:
        case OperatorKind::position_embedding:
        case OperatorKind::linear:
        case OperatorKind::layer_norm:
        case OperatorKind::rms_norm:
        case OperatorKind::batch_norm:
        case OperatorKind::attention:
        case OperatorKind::gelu:
        case OperatorKind::relu:
        case OperatorKind::silu:
        case OperatorKind::tanh:
        case OperatorKind::gated_silu:
        case OperatorKind::gated_gelu:
        case OperatorKind::dropout:
        case OperatorKind::add:
        case OperatorKind::conv2d:
        case OperatorKind::max_pool:
        case OperatorKind::average_pool:
        case OperatorKind::flatten:
        case OperatorKind::reshape:
        case OperatorKind::transpose:
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
        case OperatorKind::cross_entropy: return true;
        case OperatorKind::prepend_token:
        case OperatorKind::merge_patches:
        case OperatorKind::matrix_product:
        case OperatorKind::elementwise:
        case OperatorKind::softmax:
        case OperatorKind::normalization:
        case OperatorKind::reduce:
        case OperatorKind::concat:
        case OperatorKind::permute:
        case OperatorKind::slice:
        case OperatorKind::gather:
        case OperatorKind::pooling:
        case OperatorKind::convolution:
        case OperatorKind::unknown: return false;
    }
    throw core::InternalError("an operator kind outside its enumeration");
}

// Root mean squares of every head, and one scale for all of them: what head_norms.h computes.
bool has_norms_of_heads(const model::ModelGraph& graph, const model::Operator& op) {
    const model::Attributes& a = op.attributes;
    if (a.query_key_norm != model::QueryKeyNorm::per_head || a.has_bias || a.has_relative_bias ||
        op.parameters.size() != 2)
        return false;
    return std::all_of(op.parameters.begin(), op.parameters.end(), [&](model::ParameterId id) {
        return graph.parameter(id).shape == std::vector<std::int64_t>{a.head_dimension};
    });
}

}  // namespace

std::optional<core::Unsupported> Operators::unsupported(const model::ModelGraph& graph,
                                                        const model::Operator& op) {
    const model::Attributes& a = op.attributes;
    if (a.is_frozen) return core::Unsupported{"frozen operators"};
    if (!has_kernel(op.kind))
        return core::Unsupported{fmt::format("operators of kind {}", model::name_of(op.kind))};
    if (op.kind == OperatorKind::batch_norm && a.has_fixed_statistics)
        return core::Unsupported{"batch norm with fixed statistics"};
    if (model::has_extended_routing(a))
        return core::Unsupported{"mixtures with biases or with a rule of their own for choices and weights"};
    if (op.kind != OperatorKind::attention) return std::nullopt;
    model::Attributes others = a;
    if (has_norms_of_heads(graph, op)) others.query_key_norm = model::QueryKeyNorm::none;
    else if (a.query_key_norm == model::QueryKeyNorm::per_head && a.has_bias)
        return core::Unsupported{"attention with layer norms of queries and keys"};
    else if (a.query_key_norm == model::QueryKeyNorm::per_head)
        return core::Unsupported{"attention with norms of queries and keys without one scale for all heads"};
    else if (a.query_key_norm == model::QueryKeyNorm::all_heads)
        return core::Unsupported{"attention with norms of queries and keys over all heads together"};
    if (const auto extension = model::attention_extension(others))
        return core::Unsupported{fmt::format("attention with {}", *extension)};
    if (a.has_relative_bias && a.relative_buckets == 0)
        return core::Unsupported{"attention with a bias for every offset in a window"};
    if (a.has_relative_positions) return core::Unsupported{"attention to relative positions and a memory"};
    if (a.local_window > 0) return core::Unsupported{"attention inside local windows"};
    return std::nullopt;
}

std::optional<core::Unsupported> CpuBackend::unsupported(const schedule::Precision& precision) {
    for (const core::DataType type : {precision.activations(), precision.parameters, precision.gradients})
        if (type != core::DataType::fp32 && !is_low(type))
            return core::Unsupported{fmt::format(
                "the CPU backend computes in fp32, bf16, fp16 and fp8, the plan in {}", core::name_of(type))};
    if (precision.parameters != precision.activations())
        return core::Unsupported{"the CPU backend reads parameters in the format that it computes in"};
    const bool is_in_16_bits = is_low(precision.parameters);
    if (is_in_16_bits && !precision.has_master_parameters)
        return core::Unsupported{"the CPU backend trains parameters of 16 bits with an fp32 copy only"};
    if (!is_in_16_bits && precision.has_master_parameters)
        return core::Unsupported{"the CPU backend keeps no second copy of fp32 parameters"};
    if (precision.gradients != core::DataType::fp32 && precision.gradients != precision.parameters)
        return core::Unsupported{"the CPU backend keeps gradients in fp32 or in the parameters' format"};
    return std::nullopt;
}

}  // namespace exec::cpu
