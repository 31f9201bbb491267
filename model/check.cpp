// The promises every builder keeps, proved on the finished graph.
#include <algorithm>
#include <utility>

#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/topological_sort.hpp>

#include <fmt/core.h>

#include "core/errors.h"
#include "core/index/integers.h"
#include "model/model_graph.h"

namespace model {

namespace {

using Shape = std::vector<std::int64_t>;
using Dependencies = boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS>;

void expect(bool holds, const Operator& op, const char* what) {
    if (!holds)
        throw core::InternalError(
            fmt::format("broken promise: operator {} ({}): {}", op.name, name_of(op.kind), what));
}

// Rows of a [.., last] tensor.
std::int64_t rows(const Shape& shape) { return element_count(shape) / shape.back(); }

void check_shapes(const ModelGraph& graph, const Operator& op) {
    const Shape& y = graph.tensor(op.output).shape;
    auto x = [&](std::size_t i) -> const Shape& { return graph.tensor(op.inputs[i]).shape; };
    auto w = [&](std::size_t i) -> const Shape& { return graph.parameter(op.parameters[i]).shape; };
    auto arity = [&](std::size_t inputs, std::size_t parameters) {
        expect(op.inputs.size() == inputs && op.parameters.size() == parameters, op,
               "wrong number of inputs or parameters");
    };
    const Attributes& a = op.attributes;
    switch (op.kind) {
        case OperatorKind::input: arity(0, 0); break;
        case OperatorKind::embedding:
            arity(1, 1);
            expect(y == Shape({x(0)[0], w(0)[1]}), op, "output is [tokens, hidden]");
            break;
        case OperatorKind::position_embedding:
            arity(1, 1);
            expect(y == x(0) && w(0)[1] == y[1] && w(0)[0] >= y[0] + a.position_offset, op,
                   "positions cover the tokens");
            break;
        case OperatorKind::prepend_token:
            arity(1, 1);
            expect(y == Shape({x(0)[0] + 1, x(0)[1]}) && w(0) == Shape({1, y[1]}), op, "one row more");
            break;
        case OperatorKind::linear:
            arity(1, a.has_bias ? 2 : 1);
            expect(w(0) == Shape({y.back(), x(0).back()}) && rows(x(0)) == rows(y), op,
                   "weight is [outputs, inputs]");
            expect(!a.has_bias || w(1) == Shape({y.back()}), op, "bias is [outputs]");
            break;
        case OperatorKind::layer_norm:
            arity(1, a.has_bias ? 2 : 1);
            expect(y == x(0) && w(0) == Shape({y.back()}), op, "scale is the last dimension");
            break;
        case OperatorKind::rms_norm:
            arity(1, 1);
            expect(y == x(0) && w(0) == Shape({y.back()}), op, "scale is the last dimension");
            break;
        case OperatorKind::batch_norm:
            arity(1, 2);
            expect(y == x(0) && w(0) == Shape({y[0]}) && w(1) == w(0), op, "scale and shift are per channel");
            break;
        case OperatorKind::attention: {
            // A norm has a scale each of queries and keys, a shift each or neither.
            const std::size_t tables = a.has_relative_bias || a.has_relative_positions ? 1 : 0,
                              sinks = a.has_sinks ? 1 : 0;
            const std::size_t norms = op.parameters.size() - std::min(op.parameters.size(), tables + sinks);
            expect(op.inputs.size() == (a.is_cross_attention || a.has_relative_positions ? 2u : 1u) &&
                       op.parameters.size() == tables + sinks + norms &&
                       (norms == 0 || (a.query_key_norm != QueryKeyNorm::none && (norms == 2 || norms == 4))),
                   op, "wrong number of inputs or parameters");
            expect(!a.has_sinks || w(op.parameters.size() - 1) == Shape({a.heads}), op, "a sink a head");
            expect(a.heads > 0 && a.kv_heads > 0 && a.heads % a.kv_heads == 0 && a.head_dimension > 0, op,
                   "kv_heads divide heads");
            const std::int64_t key_value = a.kv_heads * (a.head_dimension + value_dimension(a)),
                               query = a.heads * a.head_dimension;
            expect(y == Shape({x(0)[0], a.heads * value_dimension(a)}), op, "output is [tokens, heads d]");
            expect(a.is_cross_attention ? x(0)[1] == query && x(1)[1] == key_value
                                        : x(0)[1] == query + key_value,
                   op, "queries, keys and values are packed");
            expect(!a.has_relative_positions || (x(1)[1] == x(0)[1] && w(0)[0] == query), op,
                   "memory is packed as the segment");
            expect(a.local_window == 0 || x(0)[0] % a.local_window == 0, op, "local windows tile the tokens");
            break;
        }
        case OperatorKind::gelu:
        case OperatorKind::relu:
        case OperatorKind::silu:
        case OperatorKind::tanh:
            arity(1, 0);
            expect(y == x(0), op, "shape is kept");
            break;
        case OperatorKind::dropout:
            arity(1, 0);
            expect(y == x(0) && a.probability > 0 && a.probability < 1, op, "probability is in (0, 1)");
            break;
        case OperatorKind::parallel_enter:
        case OperatorKind::parallel_exit:
            arity(1, 0);
            expect(y == x(0), op, "shape is kept");
            break;
        case OperatorKind::gated_silu:
        case OperatorKind::gated_gelu:
            arity(1, 0);
            expect(2 * y.back() == x(0).back() && rows(y) == rows(x(0)), op,
                   "gate and value halve the last dimension");
            break;
        case OperatorKind::add:
            arity(2, 0);
            expect(y == x(0) && y == x(1), op, "terms have one shape");
            break;
        case OperatorKind::conv2d:
            arity(1, a.has_bias ? 2 : 1);
            expect(w(0) == Shape({y[0], x(0)[0], a.kernel_y, a.kernel_x}), op,
                   "weight is [outputs, inputs, ky, kx]");
            [[fallthrough]];
        case OperatorKind::max_pool:
        case OperatorKind::average_pool:
            expect(y[1] == (x(0)[1] + 2 * a.padding - a.kernel_y) / a.stride + 1 &&
                       y[2] == (x(0)[2] + 2 * a.padding - a.kernel_x) / a.stride + 1 && y[1] > 0 && y[2] > 0,
                   op, "output extent follows kernel, stride and padding");
            break;
        case OperatorKind::flatten:
        case OperatorKind::transpose:
        case OperatorKind::merge_patches:
            arity(1, 0);
            expect(element_count(y) == element_count(x(0)), op, "elements are kept");
            break;
        case OperatorKind::average_tokens:
        case OperatorKind::select_first_token:
            arity(1, 0);
            expect(y == Shape({1, x(0)[1]}), op, "one row remains");
            break;
        case OperatorKind::select_positions:
            arity(2, 0);
            expect(y == Shape({x(1)[0], x(0)[1]}), op, "one row per position");
            break;
        case OperatorKind::router:
            arity(1, a.router_has_bias ? 2 : 1);
            expect(y == Shape({x(0)[0], a.experts}) && w(0) == Shape({a.experts, x(0)[1]}) &&
                       (!a.router_has_bias || w(1) == Shape({a.experts})) && a.experts_per_token <= a.experts,
                   op, "a probability per expert");
            break;
        case OperatorKind::dispatch:
            arity(2, 0);
            expect(
                y == Shape({x(0)[0] * a.experts_per_token, x(0)[1]}) && x(1) == Shape({x(0)[0], a.experts}),
                op, "a copy per token and expert");
            break;
        case OperatorKind::experts:
            arity(2, a.experts_have_bias ? 4 : 2);
            expect(y == x(0) &&
                       (!a.experts_have_bias ||
                        (w(2) == Shape({a.experts, w(0)[1]}) && w(3) == Shape({a.experts, y[1]}))) &&
                       w(0) == Shape({a.experts, a.expert_hidden * (a.experts_are_gated ? 2 : 1), y[1]}) &&
                       w(1) == Shape({a.experts, y[1], a.expert_hidden}) && x(1)[1] == a.experts,
                   op, "two products per expert");
            break;
        case OperatorKind::combine:
            arity(2, 0);
            expect(y == Shape({x(0)[0] / a.experts_per_token, x(0)[1]}) && x(1) == Shape({y[0], a.experts}),
                   op, "one row per token");
            break;
        case OperatorKind::loss_statistics:
            arity(2, 0);
            expect(y == Shape({x(0)[0], 3}) && x(1) == Shape({x(0)[0]}), op, "three statistics per row");
            break;
        case OperatorKind::cross_entropy:
            arity(3, 0);
            expect(y == Shape({1}) && x(1) == Shape({x(0)[0], 3}) && x(2) == Shape({x(0)[0]}), op,
                   "mean of rows");
            break;
        case OperatorKind::matrix_product:
            expect(op.inputs.size() + op.parameters.size() == 2 && !op.inputs.empty(), op, "two operands");
            expect(a.product.batch > 0 && a.product.batch * a.product.m * a.product.n == element_count(y), op,
                   "output is batch x m x n");
            break;
        case OperatorKind::softmax:
            arity(1, 0);
            expect(y == x(0), op, "shape is kept");
            break;
        case OperatorKind::normalization:
            expect(op.inputs.size() == 1 && op.parameters.size() <= 2, op,
                   "wrong number of inputs or parameters");
            expect(y == x(0), op, "shape is kept");
            break;
        case OperatorKind::reshape:
        case OperatorKind::permute:
            arity(1, 0);
            expect(element_count(y) == element_count(x(0)), op, "elements are kept");
            break;
        case OperatorKind::reduce:
        case OperatorKind::pooling:
            expect(op.inputs.size() == 1 && op.parameters.empty(), op,
                   "wrong number of inputs or parameters");
            break;
        case OperatorKind::slice:
            arity(1, 0);
            expect(element_count(y) <= element_count(x(0)), op, "a part of the input");
            break;
        case OperatorKind::convolution:
            arity(1, a.has_bias ? 2 : 1);
            expect(w(0).size() >= 3 && a.groups > 0 &&
                       w(0)[a.is_transposed ? 1 : 0] * (a.is_transposed ? a.groups : 1) == y[0] &&
                       w(0)[a.is_transposed ? 0 : 1] * (a.is_transposed ? 1 : a.groups) == x(0)[0],
                   op, "weight is [outputs, inputs / groups, kernel]");
            break;
        case OperatorKind::elementwise:
        case OperatorKind::concat:
        case OperatorKind::gather:
        case OperatorKind::unknown:
            expect(op.inputs.size() + op.parameters.size() > 0, op, "something to read");
            break;
    }
    for (std::int64_t extent : y) expect(extent > 0, op, "extents are positive");
}

// Within a region only split, partial or entered tensors; whole tensors with a gradient come in through
// parallel_enter alone, or their gradient would be a share.
void check_regions(const ModelGraph& graph, const Operator& op) {
    if (!op.in_parallel_region || op.kind == OperatorKind::parallel_enter) return;
    for (TensorId id : op.inputs) {
        const Tensor& tensor = graph.tensor(id);
        const Operator& producer = graph.op(tensor.producer);
        if (producer.kind == OperatorKind::input) continue;
        expect(producer.in_parallel_region, op,
               "a whole tensor enters a parallel region only through parallel_enter");
    }
}

}  // namespace

void check(const ModelGraph& graph) {
    core::require(!graph.operators.empty() && !graph.units.empty() && !graph.modules.empty(),
                  "a model has operators, units and modules");
    Dependencies dependencies(graph.operators.size());
    for (const std::int32_t i : core::indices(graph.tensors)) {
        const Tensor& tensor = graph.tensors[i];
        core::require(
            tensor.producer.is_valid() && std::cmp_less(tensor.producer.index, graph.operators.size()),
            "every tensor has a producer");
        core::require(graph.op(tensor.producer).output.index == i, "a tensor is its producer's output");
        for (OperatorId consumer : tensor.consumers) {
            core::require(consumer.is_valid() && std::cmp_less(consumer.index, graph.operators.size()),
                          "every consumer is an operator");
            boost::add_edge(static_cast<std::size_t>(tensor.producer.index),
                            static_cast<std::size_t>(consumer.index), dependencies);
        }
    }
    std::vector<std::size_t> order;
    order.reserve(graph.operators.size());
    try {
        boost::topological_sort(dependencies, std::back_inserter(order));
    } catch (const boost::not_a_dag&) {
        throw core::InternalError("broken promise: the operators of " + graph.name +
                                  " depend on each other in a cycle");
    }

    std::vector<bool> is_used(graph.parameters.size(), false);
    for (const std::int32_t i : core::indices(graph.operators)) {
        const Operator& op = graph.operators[i];
        for (TensorId input : op.inputs) {
            expect(input.is_valid() && std::cmp_less(input.index, graph.tensors.size()), op,
                   "inputs are tensors of the graph");
            expect(graph.tensor(input).producer.index < i, op, "operators are in topological order");
            bool is_listed = false;
            for (OperatorId consumer : graph.tensor(input).consumers)
                is_listed = is_listed || consumer.index == i;
            expect(is_listed, op, "inputs know their consumers");
        }
        expect(op.output.is_valid() && graph.tensor(op.output).producer.index == i, op,
               "the output knows its producer");
        for (ParameterId parameter : op.parameters) {
            expect(parameter.is_valid() && std::cmp_less(parameter.index, graph.parameters.size()), op,
                   "parameters are of the graph");
            is_used[parameter.index] = true;
        }
        expect(op.unit >= 0 && std::cmp_less(op.unit, graph.units.size()), op, "every operator has a unit");
        const OperatorRange unit = graph.units[op.unit].operators;
        expect(unit.begin <= i && i < unit.end, op, "the operator lies in its unit");
        check_shapes(graph, op);
        check_regions(graph, op);
    }
    for (std::size_t i = 0; i < is_used.size(); ++i)
        if (!is_used[i])
            throw core::InternalError("broken promise: parameter " + graph.parameters[i].name +
                                      " is used by no operator");

    std::int32_t next = 0;
    for (const Unit& unit : graph.units) {
        core::require(unit.operators.begin == next && unit.operators.end > next,
                      "units are consecutive and not empty");
        next = unit.operators.end;
    }
    core::require(next == core::count_of(graph.operators), "units cover all operators");
}

}  // namespace model
