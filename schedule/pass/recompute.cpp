#include "schedule/pass/recompute.h"

#include <algorithm>

#include "core/index/integers.h"
#include "model/model_graph.h"

namespace schedule {

namespace {

bool can_run_again(const model::ModelGraph& graph, model::OperatorRange unit) {
    bool has_input = false, continues = false;
    for (std::int32_t i = unit.begin; i < unit.end; ++i) {
        const model::Operator& op = graph.operators[i];
        if (op.kind == model::OperatorKind::embedding || op.kind == model::OperatorKind::cross_entropy)
            return false;
        has_input = has_input || op.kind == model::OperatorKind::input;
        for (const model::TensorId input : op.inputs)
            continues = continues || graph.tensor(input).producer.index < unit.begin;
    }
    // A unit that begins with the data is not recomputed. A layer that reads data beside the tensors of the
    // layer before (the memory of a Transformer-XL) is.
    return !has_input || continues;
}

}  // namespace

std::vector<char> recomputed_units(const model::ModelGraph& graph,
                                   std::span<const model::OperatorRange> units, Recompute recompute,
                                   int layers) {
    std::vector<char> run_again(units.size(), 0);
    if (recompute != Recompute::full) return run_again;
    int count = 0;
    for (std::size_t u = 0; u < units.size() && (layers == 0 || count < layers); ++u) {
        run_again[u] = can_run_again(graph, units[u]);
        count += run_again[u];
    }
    return run_again;
}

std::vector<char> recomputed_units(const model::ModelGraph& graph, Recompute recompute) {
    return recomputed_units(graph, units_of(graph, {0, core::count_of(graph.operators)}), recompute, 0);
}

bool is_recomputed(const model::Operator& op, Recompute recompute) {
    return recompute == Recompute::selective && op.in_attention_core;
}

double recomputed_share(const model::ModelGraph& graph, const model::Operator& op) {
    using model::OperatorKind;
    if (op.kind == OperatorKind::attention) return 0;
    if (op.kind != OperatorKind::linear) return 1;
    if (graph.op(graph.tensor(op.inputs[0]).producer).kind == OperatorKind::attention) return 1;
    for (const model::OperatorId reader : graph.tensor(op.output).consumers) {
        const model::Operator& next = graph.op(reader);
        if (next.kind == OperatorKind::attention)
            return static_cast<double>(next.attributes.kv_heads) /
                   static_cast<double>(next.attributes.heads + 2 * next.attributes.kv_heads);
        if (next.kind == OperatorKind::gated_silu || next.kind == OperatorKind::gated_gelu) return 0.5;
    }
    return 0;
}

std::vector<model::OperatorRange> units_of(const model::ModelGraph& graph, model::OperatorRange stage) {
    std::vector<model::OperatorRange> units;
    for (const model::Unit& unit : graph.units) {
        const model::OperatorRange part{std::max(unit.operators.begin, stage.begin),
                                        std::min(unit.operators.end, stage.end)};
        if (part.size() > 0) units.push_back(part);
    }
    return units;
}

}  // namespace schedule
