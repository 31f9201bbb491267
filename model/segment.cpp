#include "model/segment.h"

#include <fmt/core.h>

#include "core/errors.h"
#include "model/operators/rank_share.h"

namespace model {

namespace {

// Why an operator cannot work on a segment of the sequence alone.
std::optional<core::Unsupported> segment_unsupported(const ModelGraph& graph, const Operator& op) {
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
        case OperatorKind::cross_entropy: return std::nullopt;
        case OperatorKind::attention: {
            const Attributes& a = op.attributes;
            if (a.is_cross_attention)
                return core::Unsupported{fmt::format("{} attends to another sequence", op.name)};
            if (!a.is_causal)
                return core::Unsupported{fmt::format(
                    "the attention of {} is not causal: a segment would need the keys of later ones",
                    op.name)};
            if (a.has_relative_bias || a.has_relative_positions || a.local_window > 0)
                return core::Unsupported{
                    fmt::format("the attention of {} has scores of its own kind", op.name)};
            return std::nullopt;
        }
        case OperatorKind::reshape:
            if (graph.tensor(op.inputs[0]).shape == graph.tensor(op.output).shape) return std::nullopt;
            break;
        case OperatorKind::prepend_token:
        case OperatorKind::batch_norm:
        case OperatorKind::conv2d:
        case OperatorKind::max_pool:
        case OperatorKind::average_pool:
        case OperatorKind::flatten:
        case OperatorKind::transpose:
        case OperatorKind::merge_patches:
        case OperatorKind::average_tokens:
        case OperatorKind::select_first_token:
        case OperatorKind::select_positions:
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
        case OperatorKind::unknown: break;
    }
    return core::Unsupported{fmt::format("{} ({}) does not work token by token", op.name, name_of(op.kind))};
}

// Rows of a tensor per token: routed tokens have as many as the experts that a token chooses.
std::int64_t rows_of_a_token(const Operator& producer) {
    return producer.kind == OperatorKind::dispatch || producer.kind == OperatorKind::experts
               ? producer.attributes.experts_per_token
               : 1;
}

}  // namespace

std::optional<core::Unsupported> segments_unsupported(const ModelGraph& graph, int segments) {
    const std::int64_t tokens = graph.tokens_per_sample;
    if (tokens <= 1) return core::Unsupported{"it has no sequence of tokens"};
    if (graph.encoder_tokens_per_sample > 0)
        return core::Unsupported{"it has an encoder's sequence and a decoder's"};
    for (const Operator& op : graph.operators)
        if (std::optional<core::Unsupported> unsupported = segment_unsupported(graph, op)) return unsupported;
    for (const Tensor& tensor : graph.tensors) {
        const Operator& producer = graph.op(tensor.producer);
        if (producer.kind != OperatorKind::cross_entropy &&
            tensor.shape.front() != tokens * rows_of_a_token(producer))
            return core::Unsupported{fmt::format("the output of {} has {} rows for {} tokens", producer.name,
                                                 tensor.shape.front(), tokens)};
    }
    if (tokens % segments != 0)
        return core::Unsupported{fmt::format("its {} tokens are not a multiple of {}", tokens, segments),
                                 true};
    return std::nullopt;
}

SegmentGraphs::SegmentGraphs(const ModelGraph& graph, int segments) : all_(&graph, 1) {
    if (segments == 1) return;
    core::require(!segments_unsupported(graph, segments), "a graph whose sequences are cut can be cut");
    cut_.assign(segments, graph);
    for (int s = 0; s < segments; ++s) {
        ModelGraph& own = cut_[s];
        own.part = {s, segments};
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

const SegmentGraphs& KnownSegmentGraphs::of(const ModelGraph& graph, int count) {
    const std::lock_guard lock(guard_);
    return known_.try_emplace({&graph, count}, graph, count).first->second;
}

core::Bytes key_value_bytes(const ModelGraph& graph, const Operator& attention, const CostContext& context) {
    const double rows = static_cast<double>(context.micro_batch) * graph.tensor(attention.inputs[0]).shape[0];
    const double columns = 2.0 * (rank_heads(attention, attention.attributes.kv_heads, context) *
                                  attention.attributes.head_dimension);
    return core::size_of(context.compute) * (rows * columns);
}

}  // namespace model
