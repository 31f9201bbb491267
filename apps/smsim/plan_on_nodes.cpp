#include "apps/smsim/plan_on_nodes.h"

#include <algorithm>
#include <thread>

#include "core/diagnostics.h"
#include "planner/explain.h"
#include "planner/search.h"

namespace apps {

namespace {

// Of the work of one search; smplan's own default is 15 for all clusters.
constexpr core::Seconds search_limit = core::seconds(5);

// What the scenario's plan says of arithmetic and kernels; what a search decides begins anew.
schedule::Plan base_of(const schedule::Plan& plan, const cluster::DeviceSpec& device) {
    schedule::Plan base = planner::default_plan(device);
    base.precision = plan.precision;
    base.attention = plan.attention;
    base.optimizer = plan.optimizer;
    base.framework = plan.framework;
    base.communication = plan.communication;
    base.fused_cross_entropy = plan.fused_cross_entropy;
    base.gradient_bucket = plan.gradient_bucket;
    base.overlaps_gradient_reduction = plan.overlaps_gradient_reduction;
    base.overlaps_parameter_gathering = plan.overlaps_parameter_gathering;
    base.offload_bandwidth = plan.offload_bandwidth;
    base.optimizer_offload = plan.optimizer_offload;
    base.parameter_offload = plan.parameter_offload;
    return base;
}

}  // namespace

jobs::PlanOnNodes plan_on_nodes(const sim::Scenario& scenario, int threads) {
    return [&scenario, threads](int nodes) -> std::optional<jobs::ReducedPlan> {
        const schedule::Plan& plan = scenario.file.plan;
        cluster::Cluster smaller = scenario.cluster;
        smaller.nodes = nodes;
        const planner::Target target{smaller, base_of(plan, smaller.instance.device)};
        planner::SearchRequest request;
        request.global_batch = plan.global_batch();
        request.keep = 1;
        request.threads = threads > 0 ? threads : int(std::max(1u, std::thread::hardware_concurrency()));
        request.time_limit = search_limit;
        core::Diagnostics ignored;  // a cluster without a plan is an answer
        const planner::SearchResult result =
            planner::search_plans(scenario.graph, {target}, request, ignored);
        if (result.plans.empty()) return std::nullopt;
        const planner::RankedPlan& best = result.plans.front();
        return jobs::ReducedPlan{best.evaluation.step_time, planner::describe(best.plan)};
    };
}

}  // namespace apps
