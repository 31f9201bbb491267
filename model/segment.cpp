#include "model/segment.h"

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "model/operators/rank_share.h"

namespace model {

namespace {

// Why an operator cannot work on a segment of the sequence alone, or empty.
std::string obstacle_of(const Operator& op) {
    switch (op.kind) {
        case OperatorKind::input:
        case OperatorKind::embedding:
        case OperatorKind::position_embedding:
        case OperatorKind::linear:
        case OperatorKind::layer_norm:
        case OperatorKind::rms_norm:
        case OperatorKind::gelu:
        case OperatorKind::relu:
        case OperatorKind::silu:
        case OperatorKind::tanh:
        case OperatorKind::gated_silu:
        case OperatorKind::gated_gelu:
        case OperatorKind::dropout:
        case OperatorKind::add:
        case OperatorKind::router:
        case OperatorKind::dispatch:
        case OperatorKind::experts:
        case OperatorKind::combine:
        case OperatorKind::parallel_enter:
        case OperatorKind::parallel_exit:
        case OperatorKind::loss_statistics:
        case OperatorKind::cross_entropy: return {};
        case OperatorKind::attention: {
            const Attributes& a = op.attributes;
            if (a.is_cross_attention) return fmt::format("{} attends to another sequence", op.name);
            if (!a.is_causal)
                return fmt::format(
                    "the attention of {} is not causal: a segment would need the keys of later ones",
                    op.name);
            if (a.has_relative_bias || a.has_relative_positions || a.local_window > 0)
                return fmt::format("the attention of {} has scores of its own kind", op.name);
            return {};
        }
        default: return fmt::format("{} ({}) does not work token by token", op.name, name_of(op.kind));
    }
}

// Rows of a tensor that one token has: of copies for experts as many as it chooses.
std::int64_t rows_of_a_token(const Operator& producer) {
    return producer.kind == OperatorKind::dispatch || producer.kind == OperatorKind::experts
               ? producer.attributes.experts_per_token
               : 1;
}

}  // namespace

std::string segment_obstacle(const ModelGraph& graph, int segments) {
    const std::int64_t tokens = graph.tokens_per_sample;
    if (tokens <= 1) return "it has no sequence of tokens";
    if (graph.encoder_tokens_per_sample > 0) return "it has an encoder's sequence and a decoder's";
    for (const Operator& op : graph.operators)
        if (std::string obstacle = obstacle_of(op); !obstacle.empty()) return obstacle;
    for (const Tensor& tensor : graph.tensors) {
        const Operator& producer = graph.op(tensor.producer);
        if (producer.kind != OperatorKind::cross_entropy &&
            tensor.shape.front() != tokens * rows_of_a_token(producer))
            return fmt::format("the output of {} has {} rows for {} tokens", producer.name,
                               tensor.shape.front(), tokens);
    }
    if (tokens % segments != 0)
        return fmt::format("its {} tokens are not a multiple of {}", tokens, segments);
    return {};
}

SegmentGraphs::SegmentGraphs(const ModelGraph& graph, int segments) : all_(&graph, 1) {
    if (segments == 1) return;
    const std::string obstacle = segment_obstacle(graph, segments);
    core::require(obstacle.empty(), "a graph whose sequences are cut can be cut");
    cut_.assign(static_cast<std::size_t>(segments), graph);
    for (int s = 0; s < segments; ++s) {
        ModelGraph& own = cut_[static_cast<std::size_t>(s)];
        own.segments = segments;
        own.segment = s;
        own.tokens_per_sample = graph.tokens_per_sample / segments;
        for (Tensor& tensor : own.tensors)
            if (const Operator& producer = graph.op(tensor.producer);
                producer.kind != OperatorKind::cross_entropy)
                tensor.shape.front() = own.tokens_per_sample * rows_of_a_token(producer);
        for (Operator& op : own.operators)
            if (op.kind == OperatorKind::position_embedding)
                op.attributes.position_offset += own.first_token();
    }
    all_ = cut_;
}

core::Bytes key_value_bytes(const ModelGraph& graph, const Operator& attention, const CostContext& context) {
    const double rows = static_cast<double>(context.micro_batch) *
                        static_cast<double>(graph.tensor(attention.inputs[0]).shape[0]);
    const double columns =
        2.0 * static_cast<double>(rank_heads(attention, attention.attributes.kv_heads, context) *
                                  attention.attributes.head_dimension);
    return core::size_of(context.compute) * (rows * columns);
}

}  // namespace model
