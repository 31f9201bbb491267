#include "schedule/pass/recompute.h"

#include <algorithm>

namespace schedule {

bool is_recomputed(const model::ModelGraph& graph, const model::Unit& unit, Recompute recompute) {
    if (recompute != Recompute::full) return false;
    for (std::int32_t i = unit.operators.begin; i < unit.operators.end; ++i) {
        const model::OperatorKind kind = graph.operators[static_cast<std::size_t>(i)].kind;
        if (kind == model::OperatorKind::input || kind == model::OperatorKind::cross_entropy) return false;
    }
    return true;
}

bool is_recomputed(const model::Operator& op, Recompute recompute) { return recompute == Recompute::selective && op.in_attention_core; }

std::vector<model::OperatorRange> units_of(const model::ModelGraph& graph, model::OperatorRange stage) {
    std::vector<model::OperatorRange> units;
    for (const model::Unit& unit : graph.units) {
        const model::OperatorRange part{std::max(unit.operators.begin, stage.begin), std::min(unit.operators.end, stage.end)};
        if (part.size() > 0) units.push_back(part);
    }
    return units;
}

}  // namespace schedule
