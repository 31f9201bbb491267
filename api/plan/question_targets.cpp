// From where a question's plans begin: clusters with the base plans that are asked for.
#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "api/plan/question.h"
#include "core/diagnostics.h"
#include "core/index/integers.h"
#include "schedule/plan/memory.h"
#include "schedule/plan/plan_file.h"
#include "sim/cost/compute.h"
#include "sim/cost/host_update.h"

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

// A bucket that is updated on hosts is copied there and back again, and begins to be when it is reduced:
// small ones, which hide a reduction beside a pass, only add to that. Llama 2 13B on two g4dn.12xlarge takes
// 2.9 % longer with 25 MiB (2026-11-29), and DeepSpeed's reduce_bucket_size is 5e8 elements by default
// (deepspeed.ai/docs/config-json). The sizes beside it are looked at too (planner/refinement.h).
constexpr core::Bytes bucket_to_hosts = core::mebibytes(200);

// "auto": where no plan fits with all else on the devices.
void read_state_places(Request& request, Options& options) {
    const std::vector<std::string> names = {"auto", "none", "host", "either"};
    const std::string optimizer = options.choice("--optimizer-offload", names).value_or("auto"),
                      parameters = options.choice("--parameter-offload", names).value_or("auto");
    std::vector<StatePlace>&places = request.state_places, &instead = request.places_instead;
    places.clear();
    instead.clear();
    if (optimizer != "host") places.push_back(StatePlace::devices);
    if (optimizer == "host" || optimizer == "either") places.push_back(StatePlace::optimizer_on_hosts);
    if (optimizer == "auto") instead.push_back(StatePlace::optimizer_on_hosts);
    if (parameters == "either") places.push_back(StatePlace::all_on_hosts);
    if (parameters == "auto" && optimizer != "none") instead.push_back(StatePlace::all_on_hosts);
    if (parameters == "host") {
        places = {StatePlace::all_on_hosts};
        instead.clear();
    }
    if (optimizer == "none" && (parameters == "host" || parameters == "either"))
        options.error(
            "--parameter-offload",
            fmt::format("--parameter-offload {} and --optimizer-offload none contradict each other: "
                        "hosts that keep parameters update them",
                        parameters),
            "leave --optimizer-offload out");
    if (places == std::vector{StatePlace::devices}) return;
    for (const cluster::Cluster& kind : request.targets)
        if (sim::lacks_host_bandwidth(kind))
            options.error(
                parameters == "auto" || parameters == "none" ? "--optimizer-offload" : "--parameter-offload",
                fmt::format("{} states no host_memory_bandwidth", kind.instance.name),
                "give [cluster] host_memory_bandwidth in its file, or choose another target");
}

planner::SearchRequest search_beside(const Request& request, core::Seconds worked, ShareOfLimit share) {
    planner::SearchRequest search = request.search;
    if (search.time_limit)
        search.time_limit = std::clamp(*search.time_limit - worked, *search.time_limit * share.least,
                                       *search.time_limit * share.most);
    search.progress = {};  // the caller's is of its own question
    search.searches_orders = false;
    return search;
}

std::vector<planner::Target> targets_on(const Request& request, const model::ModelGraph& graph,
                                        const cluster::Cluster& kind, int nodes,
                                        core::Diagnostics& diagnostics) {
    cluster::Cluster cluster = kind;
    cluster.nodes = nodes;
    const std::vector<core::DataType>& precisions = request.limits.precisions;
    std::vector<planner::Target> targets;
    for (const StatePlace place : request.state_places) {
        const auto base_with = [&](std::optional<core::DataType> precision) {
            schedule::Plan base = base_plan(graph, kind.instance.device, precision, diagnostics);
            base.offload_bandwidth = request.offload_bandwidth;
            if (place != StatePlace::devices) {
                base.optimizer_offload = schedule::Offload::host;
                base.gradient_bucket = bucket_to_hosts;
            }
            if (place == StatePlace::all_on_hosts) {
                base.parameter_offload = schedule::Offload::host;
                base.sharding = schedule::Sharding::parameters;
            }
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

std::vector<planner::Target> targets_on_hosts(const Request& request, const model::ModelGraph& graph,
                                              const std::vector<planner::Target>& targets) {
    Request on_hosts = request;
    on_hosts.state_places = request.places_instead;
    std::vector<planner::Target> all = targets_again(on_hosts, graph, targets);
    std::erase_if(all,
                  [](const planner::Target& target) { return sim::lacks_host_bandwidth(target.cluster); });
    return all;
}

core::Bytes state_on_devices(const model::ModelGraph& graph, schedule::Plan plan) {
    plan.layout = {};
    plan.sharding = schedule::Sharding::none;
    return schedule::state_footprint(graph, {0, core::count_of(graph.operators)}, plan).sum();
}

}  // namespace api
