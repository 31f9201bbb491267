#include "api/plan/beside.h"

#include <bit>
#include <utility>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "planner/explain.h"
#include "sim/cost/host_update.h"

namespace api {

namespace {

// For each question: what was asked for has its answer.
constexpr ShareOfLimit share_of_limit{.least = 0.1, .most = 0.5};
// Of more nodes, or where the state is a smaller part of the devices' memory, what hosts may hold saves
// little: state is divided among more ranks.
constexpr int most_nodes_with_hosts = 4;
constexpr double least_share_of_state = 0.25;
// Of a step's value: the rate of hosts' updates is known less well than anything else.
constexpr double least_gain = 0.01;

bool is_of_steps(const Request& request) {
    const planner::Objective objective = request.search.objective;
    return objective == planner::Objective::speed || objective == planner::Objective::time_to_train;
}

// A search for plans of less value. `worked`: by searches so far, and then by this one too.
planner::SearchResult search_for_better(const Request& request, const model::ModelGraph& graph,
                                        const std::vector<planner::Target>& targets, double than,
                                        core::Seconds& worked) {
    planner::SearchRequest search = search_beside(request, worked, share_of_limit);
    search.better_than = than;
    core::Diagnostics unneeded;
    planner::SearchResult result = planner::search_plans(graph, targets, search, unneeded);
    worked += result.account.work;
    return result;
}

// What a step spends so that its state and activations fit, and more. Where hosts need longer than all of it
// they are not looked at.
core::Seconds spent_on_memory(const sim::Breakdown& parts) {
    return parts.recompute + parts.bubble + parts.tensor_parallel + parts.pipeline + parts.sharding +
           parts.offload + parts.optimizer;
}

}  // namespace

std::optional<FewerNodes> fewer_nodes(const Request& request, const model::ModelGraph& graph,
                                      const std::vector<planner::Target>& targets,
                                      const planner::RankedPlan& best, core::Seconds& worked) {
    if (!request.nodes || request.most_nodes || !is_of_steps(request)) return std::nullopt;
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
        planner::SearchResult result = search_for_better(request, graph, on_fewer, last.value, worked);
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

std::optional<OnHosts> faster_on_hosts(const Request& request, const model::ModelGraph& graph,
                                       const std::vector<planner::Target>& targets,
                                       const planner::RankedPlan& best, core::Seconds& worked) {
    const schedule::Plan& plan = best.plan;
    const cluster::Cluster& cluster = targets[best.candidate].cluster;
    if (!is_of_steps(request) || plan.updates_on_hosts() || cluster.nodes > most_nodes_with_hosts ||
        state_on_devices(graph, plan) <
            cluster.instance.device.memory * (least_share_of_state * cluster.device_count()))
        return std::nullopt;
    const std::vector<planner::Target> on_hosts = targets_on_hosts(request, graph, {targets[best.candidate]});
    if (on_hosts.empty()) return std::nullopt;
    schedule::Plan there = plan;
    there.optimizer_offload = schedule::Offload::host;
    const core::Seconds update = sim::HostUpdate(there, cluster, request.search.constants)
                                     .of(double(model::parameter_count(graph)) / plan.layout.ranks());
    if (spent_on_memory(best.evaluation.breakdown) <= update) return std::nullopt;
    planner::SearchResult result =
        search_for_better(request, graph, on_hosts, best.value * (1 - least_gain), worked);
    if (result.plans.empty() || result.plans.front().value >= best.value * (1 - least_gain))
        return std::nullopt;
    OnHosts found{.best = std::move(result.plans.front()), .is_proven = result.account.is_proven_optimal};
    found.faster_pct = 100 * (best.value / found.best.value - 1);
    sim::apply_site_effects(found.best.evaluation, request.posterior());
    return found;
}

namespace {

core::Value value_of(const planner::RankedPlan& best, double faster_pct, bool is_proven) {
    core::Value value = core::Value::table();
    value["plan"] = planner::describe(best.plan);
    value["step_time_s"] = best.evaluation.step_time.value;
    value["faster_pct"] = faster_pct;
    value["proven_optimal"] = is_proven;
    return value;
}

}  // namespace

void add_to(core::Value& document, const Beside& beside) {
    if (beside.fewer) {
        const FewerNodes& fewer = *beside.fewer;
        core::Value value = value_of(fewer.best, fewer.faster_pct, fewer.is_proven);
        value["nodes"] = fewer.nodes;
        document["fewer_nodes"] = std::move(value);
    }
    if (beside.on_hosts)
        document["on_hosts"] =
            value_of(beside.on_hosts->best, beside.on_hosts->faster_pct, beside.on_hosts->is_proven);
}

std::string text_of(const Beside& beside) {
    std::string text;
    if (beside.fewer) {
        const FewerNodes& fewer = *beside.fewer;
        text += fmt::format("  {} of the {} nodes {} {:.1f} % faster alone: {} a step with {} (--nodes {})\n",
                            fewer.nodes, fewer.asked, fewer.nodes == 1 ? "is" : "are", fewer.faster_pct,
                            core::format(fewer.best.evaluation.step_time), planner::describe(fewer.best.plan),
                            fewer.nodes);
    }
    if (beside.on_hosts) {
        const OnHosts& there = *beside.on_hosts;
        const bool is_all = there.best.plan.keeps_parameters_on_hosts();
        text += fmt::format("  with {} on the hosts {:.1f} % faster, if hosts update as fast as is assumed: ",
                            is_all ? "all state" : "the optimizer", there.faster_pct);
        text += fmt::format("{} a step with {} ({} either)\n", core::format(there.best.evaluation.step_time),
                            planner::describe(there.best.plan),
                            is_all ? "--parameter-offload" : "--optimizer-offload");
    }
    return text;
}

}  // namespace api
