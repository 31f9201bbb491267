#include "model/operators/workspace.h"

#include "model/operators/element_bytes.h"
#include "model/operators/rank_share.h"

namespace model {

namespace {

double attention_workspace(const ModelGraph& graph, const Operator& op, Phase phase,
                           const CostContext& context) {
    const AttentionShape shape = attention_shape(graph, op, context);
    const double size = core::size_of(context.compute).value, scores = shape.scores() * size;
    const bool is_forward = phase == Phase::forward;
    // FlashAttention-2 sums dQ over blocks of keys in fp32 and keeps the row sums of dO * O (arXiv
    // 2307.08691, algorithm 2).
    if (context.attention == AttentionImplementation::flash) {
        const RankMatrix output = rank_matrix(graph, op.output, context);
        const double statistics = fp32_bytes * output.rows * shape.heads;
        double of_ring = 0;
        if (passes_keys(op, context)) {
            const double keys = passed_key_bytes(graph, op, context).value, pieces = ring_pieces(context);
            // Transformer Engine (context_parallel.py of d0067d0da, 2026-08-22) merges what the pieces found
            // when all have, and holds it and all keys that came until then; of gradients one piece's are
            // beside their sums.
            of_ring = is_forward ? pieces * (size * output.elements() + statistics) + (pieces - 2) * keys
                                 : size * output.elements() + keys;
        }
        if (is_forward) return of_ring;
        return fp32_bytes * output.elements() + statistics + of_ring;
    }
    // Raw (scaled, masked) scores stay referenced while probabilities, mask and dropped probabilities are
    // made.
    if (is_forward) return scores;
    // The gradient of what multiplied the values comes while everything saved is still there. Without dropout
    // the step after it needs more: probabilities, their gradient and that of the scores; fused kernels write
    // the latter over the former.
    return context.attention == AttentionImplementation::unfused && op.attributes.probability == 0
               ? 2 * scores
               : scores;
}

double logits_workspace(const ModelGraph& graph, const Operator& op, const CostContext& context) {
    if (context.fused_cross_entropy) return 0;
    return fp32_bytes * rank_matrix(graph, op.inputs[0], context).elements();
}

}  // namespace

core::Bytes kernel_workspace(const ModelGraph& graph, OperatorId id, Phase phase, const CostContext& context,
                             const WorkspaceRules& rules) {
    const Operator& op = graph.op(id);
    if (op.attributes.is_frozen && phase != Phase::forward) return core::Bytes(0);
    switch (op.kind) {
        case OperatorKind::attention:
            if (phase != Phase::backward_weight)
                return core::Bytes(attention_workspace(graph, op, phase, context));
            break;
        case OperatorKind::cross_entropy:
            if (phase != Phase::backward_weight && !rules.has_in_place_loss)
                return core::Bytes(logits_workspace(graph, op, context));
            break;
        case OperatorKind::input:
        case OperatorKind::embedding:
        case OperatorKind::position_embedding:
        case OperatorKind::prepend_token:
        case OperatorKind::linear:
        case OperatorKind::layer_norm:
        case OperatorKind::rms_norm:
        case OperatorKind::batch_norm:
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
    if (phase != Phase::backward_weight || !rules.has_own_weight_gradients) return core::Bytes(0);
    double elements = 0;
    for (const ParameterId parameter : op.parameters)
        elements += parameter_elements(graph, parameter, context);
    return core::Bytes(elements * core::size_of(context.compute).value);
}

}  // namespace model
