#include "model/operators/rank_share.h"

#include <algorithm>
#include <cmath>

#include "core/index/integers.h"
#include "model/operators/element_bytes.h"

namespace model {

std::int64_t share(std::int64_t extent, int degree) { return (extent + degree - 1) / degree; }

double element_bytes(const Tensor& tensor, const CostContext& context) {
    return core::size_of(tensor.is_activation ? context.compute : tensor.type).value;
}

RankMatrix rank_matrix(const ModelGraph& graph, TensorId id, const CostContext& context) {
    const Tensor& tensor = graph.tensor(id);
    std::vector<std::int64_t> shape = tensor.shape;
    if (tensor.split == TensorSplit::split) {
        std::int64_t& extent = shape[*tensor.split_dimension];
        extent = share(extent, context.tensor_parallel);
    }
    // Context parallelism: every array over tokens is divided along them; ids and labels have no other
    // dimension. What is left is the loss.
    RankMatrix matrix{context.micro_batch * (element_count(shape) / shape.back()), shape.back()};
    if (context.context_parallel > 1 && shape.front() > 1) {
        std::int64_t& tokens = shape.size() > 1 ? matrix.rows : matrix.columns;
        tokens = share(tokens, context.context_parallel);
    }
    // Sequence parallelism: outside regions every rank holds its share of the rows of all activations.
    const Operator& producer = graph.op(tensor.producer);
    if (context.sequence_parallel && tensor.is_activation && !producer.in_parallel_region &&
        producer.kind != OperatorKind::input)
        matrix.rows = share(matrix.rows, context.tensor_parallel);
    return matrix;
}

core::Bytes tensor_bytes(const ModelGraph& graph, TensorId tensor, const CostContext& context) {
    return core::Bytes(rank_matrix(graph, tensor, context).elements() *
                       element_bytes(graph.tensor(tensor), context));
}

std::int64_t rank_extent(const Parameter& parameter, int dimension, const CostContext& context) {
    const std::int64_t extent = parameter.shape[dimension];
    if (parameter.is_expert && dimension == 0) return share(extent, context.expert_parallel);
    return dimension == parameter.split_dimension ? share(extent, context.tensor_parallel) : extent;
}

std::int64_t parameter_elements(const ModelGraph& graph, ParameterId id, const CostContext& context) {
    const Parameter& parameter = graph.parameter(id);
    std::int64_t count = 1;
    for (int dimension = 0; dimension < core::count_of(parameter.shape); ++dimension)
        count *= rank_extent(parameter, dimension, context);
    return count;
}

std::int64_t rank_heads(const Operator& op, std::int64_t heads, const CostContext& context) {
    return op.in_parallel_region ? share(heads, context.tensor_parallel) : heads;
}

AttentionShape attention_shape(const ModelGraph& graph, const Operator& op, const CostContext& context) {
    const Attributes& a = op.attributes;
    AttentionShape shape;
    // The ranks that divide the tokens of a sample, or its heads.
    const bool divides_heads = exchanges_heads(op, context);
    const int parts = divides_heads ? 1 : context.context_parallel,
              parts_of_heads = divides_heads ? context.context_parallel : 1;
    shape.heads = rank_heads(op, a.heads, context) / parts_of_heads;
    shape.kv_heads = rank_heads(op, a.kv_heads, context) / parts_of_heads;
    shape.head_dimension = a.head_dimension;
    shape.value_dimension = value_dimension(a);
    // With context parallelism a rank has two parts of the queries, one from each end, so that a causal mask
    // hides half of the scores from every rank alike.
    shape.queries = graph.tensor(op.inputs[0]).shape[0] / parts;
    shape.rows = rank_matrix(graph, op.output, context).rows * parts_of_heads;
    shape.keys = graph.tensor(op.inputs.back()).shape[0];
    if (a.has_relative_positions) shape.keys += shape.queries;
    shape.keys += graph.first_token();  // of the sequence before this part
    shape.is_causal = a.is_causal;
    std::int64_t windows = 1;
    if (a.local_window > 0) {
        windows = shape.queries / a.local_window;
        shape.queries = shape.keys = a.local_window;
    }
    // Behind a sliding window every query but the first few sees exactly `window` keys: a band, not a
    // triangle. Only flash attention is spared the rest: elsewhere a window masks scores like any other mask.
    if (context.attention == AttentionImplementation::flash && a.window > 0 && a.window < shape.keys) {
        shape.keys = a.window;
        shape.is_causal = false;
    }
    // The queries are at the end of the keys: they see all of them but half of the square at the end. Parts
    // from both ends see half of every square.
    if (shape.is_causal && parts > 1) shape.visible_share = 0.5;
    else if (shape.is_causal && shape.queries <= shape.keys)
        shape.visible_share = 1 - 0.5 * shape.queries / shape.keys;
    shape.batch = context.micro_batch * windows * shape.heads;
    return shape;
}

MixtureShape mixture_shape(const ModelGraph& graph, const Operator& op, const CostContext& context) {
    const Attributes& a = op.attributes;
    MixtureShape shape;
    shape.tokens =
        rank_matrix(graph, op.kind == OperatorKind::router ? op.output : op.inputs[1], context).rows;
    shape.hidden = rank_matrix(graph, op.inputs[0], context).columns;
    shape.routed_tokens =
        std::min(shape.tokens * a.experts_per_token, a.experts * expert_capacity(a, shape.tokens));
    shape.experts = share(a.experts, context.expert_parallel);
    shape.rows_per_expert =
        std::max<std::int64_t>(1, share(shape.routed_tokens, static_cast<int>(shape.experts)));
    shape.width = op.in_parallel_region ? share(a.expert_hidden, context.tensor_parallel) : a.expert_hidden;
    shape.first_width = shape.width * (a.experts_are_gated ? 2 : 1);
    return shape;
}

bool exchanges_routed_tokens(const Operator& op, const CostContext& context) {
    return context.expert_parallel > 1 &&
           (op.kind == OperatorKind::dispatch || op.kind == OperatorKind::experts);
}

bool gathers_tokens(const Operator& op, const CostContext& context) {
    return context.sequence_parallel && op.kind == OperatorKind::parallel_enter;
}

bool gathers_projection(const Operator& op, const CostContext& context) {
    return op.kind == OperatorKind::attention && op.in_parallel_region &&
           op.attributes.kv_heads < context.tensor_parallel;
}

bool gathers_keys(const Operator& op, const CostContext& context) {
    return (context.communicates(ContextCommunication::all_gather) && op.kind == OperatorKind::attention) ||
           gathers_projection(op, context);
}

bool exchanges_heads(const Operator& op, const CostContext& context) {
    return context.communicates(ContextCommunication::all_to_all) && op.kind == OperatorKind::attention;
}

bool passes_keys(const Operator& op, const CostContext& context) {
    return context.communicates(ContextCommunication::ring) && op.kind == OperatorKind::attention;
}

int ring_pieces(const CostContext& context) { return context.context_parallel; }

core::Bytes passed_key_bytes(const ModelGraph& graph, const Operator& attention, const CostContext& context) {
    return gathered_key_bytes(graph, attention, context) / context.context_parallel;
}

std::optional<core::Unsupported> ring_unsupported(const ModelGraph& graph, const CostContext& context) {
    if (context.attention != AttentionImplementation::flash)
        return core::Unsupported{"attention that keeps its probabilities"};
    if (context.context_parallel > most_of_a_ring)
        return core::Unsupported{"more than " + std::to_string(most_of_a_ring) + " ranks"};
    for (const Operator& op : graph.operators) {
        if (op.kind != OperatorKind::attention) continue;
        if (op.attributes.window > 0) return core::Unsupported{"the window of " + op.name};
        if (graph.tensor(op.inputs[0]).consumers.size() != 1)
            return core::Unsupported{"another reader of what " + op.name + " reads"};
        if (&graph.operators[graph.units[op.unit].operators.begin] == &op)
            return core::Unsupported{op.name + ", which begins a unit"};
    }
    return std::nullopt;
}

bool keeps_exchanged_output(const Operator& op, const CostContext& context) {
    return exchanges_heads(op, context) && context.attention == AttentionImplementation::flash;
}

std::optional<core::Unsupported> head_exchange_unsupported(const ModelGraph& graph,
                                                           const CostContext& context) {
    for (const Operator& op : graph.operators) {
        if (op.kind != OperatorKind::attention) continue;
        for (const auto& [what, heads] : {std::pair("heads of ", op.attributes.heads),
                                          std::pair("heads of keys and values of ", op.attributes.kv_heads)})
            if (const std::int64_t own = rank_heads(op, heads, context); own % context.context_parallel != 0)
                return core::Unsupported{std::to_string(own) + " " + what + op.name + " on a rank", true};
    }
    return std::nullopt;
}

int parts_of_tokens(const Operator& op, const CostContext& context) {
    return context.context_parallel * parts_of_loss(op, context);
}

int parts_of_loss(const Operator& op, const CostContext& context) {
    return context.sequence_parallel && !op.in_parallel_region ? context.tensor_parallel : 1;
}

bool sums_choices(const Operator& op, const CostContext& context) {
    return parts_of_tokens(op, context) > 1 && op.kind == OperatorKind::router &&
           op.attributes.auxiliary_loss > 0;
}

bool weight_gradients_read_parameters(const Operator& op) { return op.kind == OperatorKind::attention; }

core::Bytes choices_bytes(const Operator& router) {
    return core::Bytes(fp32_bytes * router.attributes.experts);
}

core::Bytes exchanged_bytes(const ModelGraph& graph, const Operator& op, const CostContext& context) {
    const MixtureShape shape = mixture_shape(graph, op, context);
    return core::Bytes(static_cast<double>(shape.routed_tokens) * shape.hidden *
                       core::size_of(context.compute).value);
}

core::Bytes gathered_key_bytes(const ModelGraph& graph, const Operator& attention,
                               const CostContext& context) {
    if (gathers_projection(attention, context))
        return tensor_bytes(graph, attention.inputs[0], context) * context.tensor_parallel;
    const AttentionShape shape = attention_shape(graph, attention, context);
    const double rows = rank_matrix(graph, attention.output, context).rows * context.context_parallel;
    return core::Bytes(rows * (shape.kv_heads * (shape.head_dimension + shape.value_dimension)) *
                       core::size_of(context.compute).value);
}

std::int64_t expert_capacity(const Attributes& a, std::int64_t tokens) {
    if (a.capacity_factor <= 0) return tokens;
    const double even = static_cast<double>(tokens * a.experts_per_token) / a.experts;
    return std::min<std::int64_t>(tokens, static_cast<std::int64_t>(std::ceil(a.capacity_factor * even)));
}

bool has_gradient(const ModelGraph& graph, TensorId id) {
    const Tensor& tensor = graph.tensor(id);
    const Operator& producer = graph.op(tensor.producer);
    return tensor.is_activation && producer.kind != OperatorKind::input && !producer.attributes.is_frozen;
}

}  // namespace model
