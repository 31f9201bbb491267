#include "model/operator.h"

namespace model {

std::string_view name_of(OperatorKind kind) {
    switch (kind) {
        case OperatorKind::input: return "input";
        case OperatorKind::embedding: return "embedding";
        case OperatorKind::position_embedding: return "position_embedding";
        case OperatorKind::prepend_token: return "prepend_token";
        case OperatorKind::linear: return "linear";
        case OperatorKind::layer_norm: return "layer_norm";
        case OperatorKind::rms_norm: return "rms_norm";
        case OperatorKind::batch_norm: return "batch_norm";
        case OperatorKind::attention: return "attention";
        case OperatorKind::gelu: return "gelu";
        case OperatorKind::relu: return "relu";
        case OperatorKind::silu: return "silu";
        case OperatorKind::tanh: return "tanh";
        case OperatorKind::gated_silu: return "gated_silu";
        case OperatorKind::gated_gelu: return "gated_gelu";
        case OperatorKind::dropout: return "dropout";
        case OperatorKind::add: return "add";
        case OperatorKind::conv2d: return "conv2d";
        case OperatorKind::max_pool: return "max_pool";
        case OperatorKind::average_pool: return "average_pool";
        case OperatorKind::flatten: return "flatten";
        case OperatorKind::transpose: return "transpose";
        case OperatorKind::merge_patches: return "merge_patches";
        case OperatorKind::average_tokens: return "average_tokens";
        case OperatorKind::select_first_token: return "select_first_token";
        case OperatorKind::select_positions: return "select_positions";
        case OperatorKind::router: return "router";
        case OperatorKind::dispatch: return "dispatch";
        case OperatorKind::experts: return "experts";
        case OperatorKind::combine: return "combine";
        case OperatorKind::parallel_enter: return "parallel_enter";
        case OperatorKind::parallel_exit: return "parallel_exit";
        case OperatorKind::loss_statistics: return "loss_statistics";
        case OperatorKind::cross_entropy: return "cross_entropy";
        case OperatorKind::matrix_product: return "matrix_product";
        case OperatorKind::elementwise: return "elementwise";
        case OperatorKind::softmax: return "softmax";
        case OperatorKind::normalization: return "normalization";
        case OperatorKind::reduce: return "reduce";
        case OperatorKind::concat: return "concat";
        case OperatorKind::reshape: return "reshape";
        case OperatorKind::permute: return "permute";
        case OperatorKind::slice: return "slice";
        case OperatorKind::gather: return "gather";
        case OperatorKind::pooling: return "pooling";
        case OperatorKind::convolution: return "convolution";
        case OperatorKind::unknown: return "unknown";
    }
    return "";
}

bool is_view(OperatorKind kind) { return kind == OperatorKind::flatten || kind == OperatorKind::reshape; }

std::int64_t element_count(const std::vector<std::int64_t>& shape) {
    std::int64_t count = 1;
    for (std::int64_t extent : shape) count *= extent;
    return count;
}

bool has_extended_routing(const Attributes& a) {
    return a.router_has_bias || a.experts_have_bias || a.has_sigmoid_scores || a.has_plain_weights ||
           a.routed_scale != 1 || a.expert_groups > 1 || a.activation_limit;
}

std::optional<std::string_view> attention_extension(const Attributes& a) {
    if (a.query_key_norm != QueryKeyNorm::none) return "norms of queries and keys";
    if (a.soft_cap) return "soft caps of scores";
    if (a.has_sinks) return "attention sinks";
    if (value_dimension(a) != a.head_dimension) return "values of a dimension of their own";
    if (a.window > 0 && !a.is_causal) return "sliding windows without a causal mask";
    if (a.local_window > 0 && a.is_causal) return "causal attention inside chunks";
    return std::nullopt;
}

}  // namespace model
