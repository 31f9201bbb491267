#include "api/searched_order.h"

#include <optional>
#include <utility>

#include "planner/order/plan_order.h"
#include "schedule/plan/explicit_order.h"

namespace api {

bool search_order(sim::Scenario& scenario, core::Diagnostics& diagnostics, std::string& explanation) {
    schedule::Plan& plan = scenario.file.plan;
    if (!schedule::is_searched_order(plan.schedule)) return true;
    std::optional<planner::OrderedPlan> ordered =
        planner::with_searched_order(scenario.graph, scenario.cluster, plan, diagnostics);
    if (!ordered) return false;
    plan = std::move(ordered->plan);
    explanation = std::move(ordered->explanation);
    return true;
}

}  // namespace api
