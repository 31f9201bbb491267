// From where a question's plans begin: clusters with the base plans that are asked for.
#include <algorithm>
#include <utility>
#include <vector>

#include "api/plan/question.h"
#include "core/diagnostics.h"
#include "core/errors.h"
#include "schedule/plan/plan_file.h"
#include "sim/cost/compute.h"

namespace api {

schedule::Plan base_plan(const model::ModelGraph& graph, const cluster::DeviceSpec& device,
                         std::optional<core::DataType> precision, core::Diagnostics& diagnostics) {
    schedule::Plan plan = planner::default_plan(device);
    if (precision) plan.precision = schedule::precision_named(*precision);
    for (model::AttentionImplementation attention :
         {plan.attention, model::AttentionImplementation::fused_softmax,
          model::AttentionImplementation::unfused}) {
        plan.attention = attention;
        core::Diagnostics problems;
        if (sim::ComputeCost::make(graph, device, plan, problems)) return plan;
        if (attention == model::AttentionImplementation::unfused) diagnostics.append(problems);
    }
    return plan;
}

planner::SearchRequest search_beside(const Request& request) {
    planner::SearchRequest search = request.search;
    search.progress = {};  // the caller's is of its own question
    search.searches_orders = false;
    return search;
}

namespace {

std::vector<schedule::Offload> places_of(OptimizerPlace place) {
    switch (place) {
        case OptimizerPlace::devices_first:
        case OptimizerPlace::devices: return {schedule::Offload::none};
        case OptimizerPlace::hosts: return {schedule::Offload::host};
        case OptimizerPlace::either: return {schedule::Offload::none, schedule::Offload::host};
    }
    throw core::InternalError("broken promise: every place has its plans");
}

}  // namespace

std::vector<planner::Target> targets_on(const Request& request, const model::ModelGraph& graph,
                                        const cluster::Cluster& kind, int nodes,
                                        core::Diagnostics& diagnostics) {
    cluster::Cluster cluster = kind;
    cluster.nodes = nodes;
    const std::vector<core::DataType>& precisions = request.limits.precisions;
    std::vector<planner::Target> targets;
    for (const schedule::Offload place : places_of(request.optimizer_place)) {
        const auto base_with = [&](std::optional<core::DataType> precision) {
            schedule::Plan base = base_plan(graph, kind.instance.device, precision, diagnostics);
            base.offload_bandwidth = request.offload_bandwidth;
            base.optimizer_offload = place;
            return base;
        };
        if (request.runner) {
            for (planner::Target& target :
                 targets_for(*request.runner, graph, cluster, base_with(std::nullopt), precisions))
                targets.push_back(std::move(target));
            continue;
        }
        for (const core::DataType precision : precisions) targets.push_back({cluster, base_with(precision)});
        if (precisions.empty()) targets.push_back({cluster, base_with(std::nullopt)});
    }
    return targets;
}

std::vector<planner::Target> targets_again(const Request& other, const model::ModelGraph& graph,
                                           const std::vector<planner::Target>& targets) {
    std::vector<planner::Target> again;
    core::Diagnostics unneeded;
    for (const planner::Target& target : targets) {
        const cluster::Cluster& cluster = target.cluster;
        const bool is_known = std::any_of(again.begin(), again.end(), [&](const planner::Target& known) {
            return known.cluster.instance.name == cluster.instance.name &&
                   known.cluster.nodes == cluster.nodes;
        });
        if (is_known) continue;
        for (planner::Target& one : targets_on(other, graph, cluster, cluster.nodes, unneeded))
            again.push_back(std::move(one));
    }
    return again;
}

}  // namespace api
