#include "partition/replicated/replicated_cost.h"

#include <algorithm>

#include "core/errors.h"

namespace partition {

ReplicatedCosts::ReplicatedCosts(const ReplicatedProblem& problem)
    : problem_(problem), incoming_(problem.nodes.size()), outgoing_(problem.nodes.size()) {
    for (std::size_t e = 0; e < problem.edges.size(); ++e) {
        incoming_[problem.edges[e].to].push_back(e);
        outgoing_[problem.edges[e].from].push_back(e);
    }
}

ConfigurationCost ReplicatedCosts::of(std::size_t node, const NodeConfiguration& configuration, int data,
                                      const std::vector<char>& inside) const {
    double bytes = 0;
    auto extra = [](const std::map<std::size_t, core::Bytes>& list, std::size_t neighbour) {
        auto found = list.find(neighbour);
        return found == list.end() ? 0.0 : found->second.value;
    };
    for (std::size_t e : incoming_[node]) {
        const std::size_t from = problem_.edges[e].from;
        if (!inside[from]) bytes += problem_.edges[e].bytes.value + extra(configuration.receive_from, from);
    }
    for (std::size_t e : outgoing_[node]) {
        const std::size_t to = problem_.edges[e].to;
        if (!inside[to]) bytes += problem_.edges[e].bytes.value + extra(configuration.send_to, to);
    }
    // Activations forward and gradients backward: twice the cut. Parameters are reduced through servers, 4 (d
    // - 1) / d of them a batch (PipeDream's model).
    double reduced = 4.0 * (data - 1) * configuration.parameters.value / data / problem_.micro_batches;
    double time =
        (2 * bytes / data + reduced) / problem_.bandwidth.value + configuration.time_per_sample.value / data;
    return {core::Seconds(time), configuration.memory_per_sample, configuration.memory_fixed};
}

bool ReplicatedCosts::may_lead(std::size_t node, const std::vector<char>& set) const {
    return std::all_of(outgoing_[node].begin(), outgoing_[node].end(),
                       [&](std::size_t e) { return set[problem_.edges[e].to] != 0; });
}

ReplicatedStage evaluate_stage(const ReplicatedProblem& problem, std::vector<std::size_t> nodes, int data,
                               int tensor, std::vector<std::size_t> configurations, int later_replicas) {
    const ReplicatedCosts costs(problem);
    std::vector<char> inside(problem.nodes.size(), 0);
    for (std::size_t v : nodes) inside[v] = 1;
    ReplicatedStage stage{.nodes = std::move(nodes),
                          .data = data,
                          .tensor = tensor,
                          .configurations = std::move(configurations),
                          .time = {},
                          .memory = {}};
    core::require(stage.nodes.size() == stage.configurations.size(), "a stage has one configuration a node");
    int in_flight = (later_replicas + data + data - 1) / data;
    for (std::size_t i = 0; i < stage.nodes.size(); ++i) {
        const auto& list = problem.nodes[stage.nodes[i]].configurations.at(tensor);
        const ConfigurationCost cost =
            costs.of(stage.nodes[i], list.at(stage.configurations[i]), data, inside);
        stage.time += cost.time;
        stage.memory += cost.per_sample * in_flight + cost.fixed;
    }
    return stage;
}

}  // namespace partition
