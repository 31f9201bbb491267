#include "api/plan/no_plan.h"

#include <fmt/core.h>

#include "cluster/node.h"
#include "planner/explain.h"

namespace api {

namespace {

constexpr int most_nodes_tried = 4096;  // where none are asked for

std::string shortfall_text(const model::ModelGraph& graph, const std::vector<planner::Target>& targets,
                           const planner::SearchResult& result, int global_batch) {
    const planner::Target& target =
        targets[result.shortfall ? result.shortfall->candidate : targets.size() - 1];
    const cluster::Cluster& cluster = target.cluster;
    schedule::Plan on_devices = target.base;
    on_devices.optimizer_offload = on_devices.parameter_offload = schedule::Offload::none;
    core::Bytes state = state_on_devices(graph, on_devices);
    core::Bytes all = cluster.instance.device.memory * static_cast<double>(cluster.device_count());
    std::string text = fmt::format(
        "{} needs {} for parameters, gradients and optimizer state; {} x {} has {} devices of {}, {} in all",
        graph.name, core::format(state), cluster.nodes, cluster.instance.name, cluster.device_count(),
        core::format(cluster.instance.device.memory), core::format(all));
    if (result.shortfall)
        text += fmt::format(
            "; the nearest plan ({}) needs at least {} on pipeline rank {}{}, {} more than there is",
            planner::describe(result.shortfall->plan), core::format(result.shortfall->needed),
            result.shortfall->pipeline_rank,
            result.shortfall->plan.stages() > 1 ? " with the partition that balances its stages" : "",
            core::format(result.shortfall->needed - result.shortfall->available));
    else if (result.account.space == 0)
        text += fmt::format(
            "; no degrees of parallelism divide {} devices, the model's {} layers and the global batch of {}",
            cluster.device_count(), graph.units.size(), global_batch);
    if (result.account.partitions.undecided > 0)
        text += fmt::format("; of {} plans with several stages a rank not every partition was looked at",
                            core::with_thousands(result.account.partitions.undecided));
    return text;
}

// The smallest count of nodes, doubling, on which something fits.
std::string remedy(const Request& request, const model::ModelGraph& graph, const planner::Target& target) {
    const LimitOptions& limits = request.limits;
    core::Diagnostics unneeded;
    const cluster::InstanceType& instance = target.cluster.instance;
    double state = state_on_devices(graph, target.base) /
                   (instance.device.memory * static_cast<double>(instance.devices));
    if (!cluster::has_network(instance))
        return fmt::format("{} has no network: use an instance with more memory", instance.name);
    int from = 1;
    while (from <= most_nodes_tried && (from < target.cluster.nodes || from < state / 2)) from *= 2;
    for (int batch : {request.search.global_batch, 0})
        for (int n = from; n <= most_nodes_tried && n <= 64 * from; n *= 2) {
            int used =
                batch > 0 ? batch : n * instance.devices;  // a batch that lets every device be a replica
            for (const planner::Target& larger : targets_on(request, graph, target.cluster, n, unneeded)) {
                const std::optional<schedule::Plan> plan =
                    planner::find_fitting_plan(graph, larger, used, request.search.offload, limits.plans);
                if (!plan) continue;
                std::string text =
                    fmt::format("{} x {} fit it: {}", n, instance.name, planner::describe(*plan));
                if (batch == 0) text += fmt::format(" (with --global-batch {})", used);
                return text;
            }
        }
    return fmt::format("no number of {} up to {} fits it with these degrees; use devices with more memory{}",
                       instance.name, most_nodes_tried,
                       limits.is_empty() ? "" : fmt::format(", or allow more than {}", limits.text));
}

// The plan of least time, or of least cost, without deadline and budget: its hours and its price.
std::string nearest_plan(const Request& request, const model::ModelGraph& graph,
                         const std::vector<planner::Target>& targets, planner::Objective objective) {
    planner::SearchRequest search = request.search;
    search.objective = objective;
    search.deadline.reset();
    search.budget.reset();
    search.keep = 1;
    search.searches_orders = false;
    core::Diagnostics unneeded;
    const planner::SearchResult free = planner::search_plans(graph, targets, search, unneeded);
    if (free.plans.empty()) return "; without them no plan fits the memory";
    const planner::RankedPlan& plan = free.plans.front();
    const cluster::Cluster& cluster = targets[plan.candidate].cluster;
    std::string text = fmt::format("; the {} plan that fits, {} on {} x {}, takes {:.1f} hours",
                                   objective == planner::Objective::cost ? "cheapest" : "fastest",
                                   planner::describe(plan.plan), cluster.nodes, cluster.instance.name,
                                   plan.training_time->value / core::hours(1).value);
    if (cluster::find_price(cluster.instance, "on-demand"))
        text += fmt::format(" and costs {:.0f} USD", plan.training_cost->value);
    return text;
}

// What stands against the simplest plan already.
std::string refused_by(const Runner& runner, const model::ModelGraph& graph, const Request& request,
                       const std::vector<planner::Target>& targets) {
    schedule::Plan plan = targets.empty() ? schedule::Plan() : targets.front().base;
    cluster::Cluster cluster = request.targets.front();
    if (!targets.empty()) cluster = targets.front().cluster;
    plan.layout.data = cluster.device_count();
    std::string text;
    for (const interop::Refusal& refusal : refusals(runner, export_source(graph, cluster, plan)))
        text += (text.empty() ? ": " : "; ") + refusal.reason;
    return text;
}

}  // namespace

core::Diagnostics why_no_plan(const Request& request, const model::ModelGraph& graph,
                              const std::vector<planner::Target>& targets,
                              const planner::SearchResult& result, const core::Diagnostics& diagnostics) {
    core::Diagnostics reason;
    const planner::SearchAccount& account = result.account;
    if (request.runner && account.space == 0) {
        const std::string why = refused_by(*request.runner, graph, request, targets);
        reason.error({}, "--for",
                     fmt::format("{} runs no plan of {} here{}", request.runner->name, graph.name, why),
                     "choose another tool or model, or keep plans to fewer values");
        return reason;
    }
    std::size_t constrained = 0;
    for (const planner::Rejection rejection : {planner::Rejection::deadline, planner::Rejection::budget})
        if (account.rejected.count(rejection)) constrained += account.rejected.at(rejection);
    if (constrained > 0) {
        std::string text = "no plan meets the constraints:";
        for (const auto& [rejection, count] : account.rejected)
            text += fmt::format(" {} {};", count, planner::reason_of(rejection));
        text.pop_back();
        if (account.rejected.contains(planner::Rejection::deadline))
            text += nearest_plan(request, graph, targets, planner::Objective::speed);
        if (account.rejected.contains(planner::Rejection::budget))
            text += nearest_plan(request, graph, targets, planner::Objective::cost);
        reason.error({}, "--target", text,
                     "allow more time (--deadline), money (--budget) or nodes (--max-nodes)");
    } else if (account.space == 0 && !request.limits.is_empty()) {
        std::string text = fmt::format("no plan of {} devices and a global batch of {} has {}",
                                       targets.back().cluster.device_count(), request.search.global_batch,
                                       request.limits.text);
        for (const int tensor : request.limits.plans.tensor)
            if (const std::optional<core::Unsupported> why =
                    model::tensor_parallel_unsupported(graph, tensor))
                text += fmt::format("; --tp {}: {}", tensor, why->reason);
        reason.error({}, "--target", text, "leave one of them out, or allow more values");
    } else if (account.unvisited > 0 || account.partitions.open > 0) {
        std::string text =
            account.unvisited > 0
                ? fmt::format("no plan was found in time: {} of {} plans were not looked at",
                              core::with_thousands(account.unvisited), core::with_thousands(account.space))
                : fmt::format("no plan was found in time: of {} plans not every partition was looked at",
                              core::with_thousands(account.partitions.open));
        for (const auto& [rejection, count] : account.rejected)
            text += fmt::format(", {}: {}", planner::reason_of(rejection), core::with_thousands(count));
        reason.error({}, "--time-limit", text,
                     "give it more time (--time-limit), or keep plans to fewer values (--tp, --pp, ...)");
    } else {
        reason.append(diagnostics);
        if (!diagnostics.has_errors())
            reason.error(
                {}, "--target",
                (account.partitions.undecided > 0 ? "no plan was found that fits: " : "no plan fits: ") +
                    shortfall_text(graph, targets, result, request.search.global_batch),
                remedy(request, graph, targets.back()));
    }
    return reason;
}

}  // namespace api
