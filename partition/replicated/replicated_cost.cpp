#include "partition/replicated/replicated_cost.h"

#include <algorithm>

#include "core/diagnostics.h"

namespace partition {

ReplicatedCosts::ReplicatedCosts(const ReplicatedProblem& problem)
    : problem_(problem), incoming_(problem.nodes.size()), outgoing_(problem.nodes.size()) {
    for (std::size_t e = 0; e < problem.edges.size(); ++e) {
        incoming_[static_cast<std::size_t>(problem.edges[e].to)].push_back(static_cast<int>(e));
        outgoing_[static_cast<std::size_t>(problem.edges[e].from)].push_back(static_cast<int>(e));
    }
}

ConfigurationCost ReplicatedCosts::of(int node, const NodeConfiguration& configuration, int data,
                                      const std::vector<char>& inside) const {
    double bytes = 0;
    auto extra = [](const std::map<int, core::Bytes>& list, int neighbour) {
        auto found = list.find(neighbour);
        return found == list.end() ? 0.0 : found->second.value;
    };
    for (int e : incoming_[static_cast<std::size_t>(node)]) {
        int from = problem_.edges[static_cast<std::size_t>(e)].from;
        if (!inside[static_cast<std::size_t>(from)])
            bytes += problem_.edges[static_cast<std::size_t>(e)].bytes.value +
                     extra(configuration.receive_from, from);
    }
    for (int e : outgoing_[static_cast<std::size_t>(node)]) {
        int to = problem_.edges[static_cast<std::size_t>(e)].to;
        if (!inside[static_cast<std::size_t>(to)])
            bytes +=
                problem_.edges[static_cast<std::size_t>(e)].bytes.value + extra(configuration.send_to, to);
    }
    // Activations forward and gradients backward: twice the cut. Parameters are reduced through servers, 4 (d
    // - 1) / d of them a batch (PipeDream's model).
    double reduced = 4.0 * (data - 1) * configuration.parameters.value / data / problem_.micro_batches;
    double time =
        (2 * bytes / data + reduced) / problem_.bandwidth.value + configuration.time_per_sample.value / data;
    return {core::Seconds(time), configuration.memory_per_sample, configuration.memory_fixed};
}

bool ReplicatedCosts::may_lead(std::size_t node, const std::vector<char>& set) const {
    return std::all_of(outgoing_[node].begin(), outgoing_[node].end(), [&](int e) {
        return set[static_cast<std::size_t>(problem_.edges[static_cast<std::size_t>(e)].to)] != 0;
    });
}

ReplicatedStage evaluate_stage(const ReplicatedProblem& problem, std::vector<int> nodes, int data, int tensor,
                               std::vector<int> configurations, int later_replicas) {
    const ReplicatedCosts costs(problem);
    std::vector<char> inside(problem.nodes.size(), 0);
    for (int v : nodes) inside[static_cast<std::size_t>(v)] = 1;
    ReplicatedStage stage{.nodes = std::move(nodes),
                          .data = data,
                          .tensor = tensor,
                          .configurations = std::move(configurations),
                          .time = {},
                          .memory = {}};
    core::require(stage.nodes.size() == stage.configurations.size(), "a stage has one configuration a node");
    int in_flight = (later_replicas + data + data - 1) / data;
    for (std::size_t i = 0; i < stage.nodes.size(); ++i) {
        const auto& list = problem.nodes[static_cast<std::size_t>(stage.nodes[i])].configurations.at(tensor);
        const ConfigurationCost cost = costs.of(
            stage.nodes[i], list.at(static_cast<std::size_t>(stage.configurations[i])), data, inside);
        stage.time += cost.time;
        stage.memory += cost.per_sample * in_flight + cost.fixed;
    }
    return stage;
}

}  // namespace partition
