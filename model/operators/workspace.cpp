#include "model/operators/workspace.h"

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
        if (is_forward) return 0;
        const RankMatrix output = rank_matrix(graph, op.output, context);
        return 4.0 * output.elements() +
               4.0 * static_cast<double>(output.rows) * static_cast<double>(shape.heads);
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
    return 4.0 * rank_matrix(graph, op.inputs[0], context).elements();
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
        default: break;
    }
    if (phase != Phase::backward_weight || !rules.has_own_weight_gradients) return core::Bytes(0);
    double elements = 0;
    for (const ParameterId parameter : op.parameters)
        elements += static_cast<double>(parameter_elements(graph, parameter, context));
    return core::Bytes(elements * core::size_of(context.compute).value);
}

}  // namespace model
