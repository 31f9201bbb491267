#include "api/plan/fewer_nodes.h"

#include <bit>
#include <utility>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "planner/explain.h"

namespace api {

namespace {

// Of the limit, for each number of nodes: what was asked for has its answer.
constexpr double share_of_limit = 0.5;

}  // namespace

std::optional<FewerNodes> fewer_nodes(const Request& request, const model::ModelGraph& graph,
                                      const std::vector<planner::Target>& targets,
                                      const planner::RankedPlan& best) {
    const planner::Objective objective = request.search.objective;
    if (!request.nodes || request.most_nodes ||
        (objective != planner::Objective::speed && objective != planner::Objective::time_to_train))
        return std::nullopt;
    const cluster::Cluster& all = targets[best.candidate].cluster;
    std::optional<FewerNodes> found;
    for (int nodes = all.nodes; nodes > 1;) {
        const planner::RankedPlan& last = found ? found->best : best;
        const int fewer = int(std::bit_floor(unsigned(nodes - 1)));
        const sim::Breakdown& parts = last.evaluation.breakdown;
        if ((parts.compute + parts.recompute) * nodes / fewer >= last.evaluation.step_time) break;
        nodes = fewer;
        core::Diagnostics unneeded;
        const std::vector<planner::Target> on_fewer = targets_on(request, graph, all, nodes, unneeded);
        planner::SearchRequest search = search_beside(request);
        if (search.time_limit) *search.time_limit = *search.time_limit * share_of_limit;
        search.better_than = last.value;
        planner::SearchResult result = planner::search_plans(graph, on_fewer, search, unneeded);
        if (result.plans.empty() || result.plans.front().value >= last.value) break;
        found = FewerNodes{.nodes = nodes,
                           .asked = all.nodes,
                           .best = std::move(result.plans.front()),
                           .is_proven = result.account.is_proven_optimal};
        found->faster_pct = 100 * (best.value / found->best.value - 1);
        sim::apply_site_effects(found->best.evaluation, request.posterior());
    }
    return found;
}

core::Value to_value(const FewerNodes& fewer) {
    core::Value value = core::Value::table();
    value["nodes"] = fewer.nodes;
    value["plan"] = planner::describe(fewer.best.plan);
    value["step_time_s"] = fewer.best.evaluation.step_time.value;
    value["faster_pct"] = fewer.faster_pct;
    value["proven_optimal"] = fewer.is_proven;
    return value;
}

std::string text_of(const FewerNodes& fewer) {
    return fmt::format("{} of the {} nodes {} {:.1f} % faster alone: {} a step with {} (--nodes {})",
                       fewer.nodes, fewer.asked, fewer.nodes == 1 ? "is" : "are", fewer.faster_pct,
                       core::format(fewer.best.evaluation.step_time), planner::describe(fewer.best.plan),
                       fewer.nodes);
}

}  // namespace api
