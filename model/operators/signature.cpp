#include "model/operators/signature.h"

#include <fmt/core.h>

#include "model/operators/rank_share.h"

namespace model {

namespace {

std::string shape_text(const ModelGraph& graph, TensorId id, const CostContext& context) {
    const Tensor& tensor = graph.tensor(id);
    if (tensor.shape.size() > 2) {
        std::string text = "[";
        for (std::int64_t extent : tensor.shape)
            text += fmt::format("{}{}", text.size() > 1 ? "," : "", extent);
        return text + "]";
    }
    // Rows of the whole micro-batch, as the kernel sees them.
    const RankMatrix matrix = rank_matrix(graph, id, context);
    return fmt::format("[{},{}]", matrix.rows, matrix.columns);
}

}  // namespace

std::string signature(const ModelGraph& graph, OperatorId id, const CostContext& context) {
    const Operator& op = graph.op(id);
    const Attributes& a = op.attributes;
    std::string text(name_of(op.kind));
    for (TensorId input : op.inputs) text += " x=" + shape_text(graph, input, context);
    text += " y=" + shape_text(graph, op.output, context);
    if (a.has_bias) text += " bias";
    switch (op.kind) {
        case OperatorKind::attention: {
            const AttentionShape s = attention_shape(graph, op, context);
            text += fmt::format(" heads={} kv_heads={} d={} queries={} keys={}", s.heads, s.kv_heads,
                                s.head_dimension, s.queries, s.keys);
            text += s.is_causal ? " causal" : "";
            text += a.window > 0 && a.window < graph.tensor(op.inputs.back()).shape[0] + graph.first_token()
                        ? fmt::format(" window={}", a.window)
                        : "";
            text += a.is_rotary ? fmt::format(" rotary={}", a.rotary_fraction) : "";
            text += a.has_alibi ? " alibi" : "";
            text += a.value_dimension ? fmt::format(" dv={}", s.value_dimension) : "";
            text += a.query_key_norm != QueryKeyNorm::none ? " query_key_norm" : "";
            text += a.soft_cap ? " soft_cap" : "";
            text += a.has_sinks ? " sinks" : "";
            text += a.has_relative_bias ? " relative_bias" : "";
            text += passes_keys(op, context) ? fmt::format(" ring={}", ring_pieces(context)) : "";
            text += a.is_shifted ? " shifted" : "";
            text += a.probability > 0 ? " dropout" : "";
            text += context.attention == AttentionImplementation::flash     ? " flash"
                    : context.attention == AttentionImplementation::unfused ? " unfused"
                                                                            : " fused_softmax";
            break;
        }
        case OperatorKind::conv2d:
        case OperatorKind::max_pool:
        case OperatorKind::average_pool:
            text += fmt::format(" kernel={}x{} stride={} padding={}", a.kernel_y, a.kernel_x, a.stride,
                                a.padding);
            break;
        case OperatorKind::embedding:
        case OperatorKind::position_embedding:
            text += fmt::format(" rows={}", rank_extent(graph.parameter(op.parameters[0]), 0, context));
            break;
        case OperatorKind::linear:
            if (!has_gradient(graph, op.inputs[0])) text += " leaf";
            if (a.input_scale != 1.0) text += " scaled";
            break;
        case OperatorKind::router:
        case OperatorKind::dispatch:
        case OperatorKind::combine:
            text += fmt::format(" experts={} top={}{}", a.experts, a.experts_per_token,
                                a.router_has_bias ? " bias" : "");
            break;
        case OperatorKind::experts: {
            const MixtureShape s = mixture_shape(graph, op, context);
            text += fmt::format(" experts={}/{} top={} width={}{}", s.experts, a.experts, a.experts_per_token,
                                s.width, a.experts_are_gated ? " gated" : "");
            text += a.experts_have_bias ? " bias" : "";
            text += context.remakes_expert_activation ? " again" : "";
            break;
        }
        case OperatorKind::gelu:
        case OperatorKind::gated_gelu: text += a.is_tanh_approximation ? " tanh" : ""; break;
        case OperatorKind::loss_statistics:
        case OperatorKind::cross_entropy: text += context.fused_cross_entropy ? " fused" : ""; break;
        case OperatorKind::matrix_product:
            text += fmt::format(" batch={} m={} n={} k={}", a.product.batch, a.product.m, a.product.n,
                                a.product.k);
            break;
        case OperatorKind::convolution:
            text += fmt::format(" kernel={}x{} stride={} groups={}{}", a.kernel_y, a.kernel_x, a.stride,
                                a.groups, a.is_transposed ? " transposed" : "");
            break;
        case OperatorKind::reduce:
        case OperatorKind::pooling: text += a.is_maximum ? " maximum" : ""; break;
        case OperatorKind::input:
        case OperatorKind::prepend_token:
        case OperatorKind::layer_norm:
        case OperatorKind::rms_norm:
        case OperatorKind::batch_norm:
        case OperatorKind::relu:
        case OperatorKind::silu:
        case OperatorKind::tanh:
        case OperatorKind::gated_silu:
        case OperatorKind::dropout:
        case OperatorKind::add:
        case OperatorKind::flatten:
        case OperatorKind::transpose:
        case OperatorKind::merge_patches:
        case OperatorKind::average_tokens:
        case OperatorKind::select_first_token:
        case OperatorKind::select_positions:
        case OperatorKind::parallel_enter:
        case OperatorKind::parallel_exit:
        case OperatorKind::elementwise:
        case OperatorKind::softmax:
        case OperatorKind::normalization:
        case OperatorKind::concat:
        case OperatorKind::reshape:
        case OperatorKind::permute:
        case OperatorKind::slice:
        case OperatorKind::gather:
        case OperatorKind::unknown: break;
    }
    // Sums of gradients are part of an operator's backward where its input has other readers.
    for (TensorId input : op.inputs)
        if (has_gradient(graph, input) && graph.tensor(input).consumers.back() != id) text += " sums";
    if (op.kind == OperatorKind::conv2d && !has_gradient(graph, op.inputs[0])) text += " leaf";
    if (context.context_parallel > 1) text += fmt::format(" context={}", context.context_parallel);
    return text + fmt::format(" b={} {}", context.micro_batch, core::name_of(context.compute));
}

}  // namespace model
