#include "partition/replicated/replicated_reduction.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

namespace partition {

namespace {

bool is_zero(const std::map<std::size_t, core::Bytes>& bytes) {
    return std::all_of(bytes.begin(), bytes.end(), [](const auto& entry) { return entry.second.value == 0; });
}

bool is_free(const ConfigurableNode& node, const std::set<int>& degrees) {
    for (int degree : degrees) {
        const auto found = node.configurations.find(degree);
        if (found == node.configurations.end() || found->second.empty()) return false;
        for (const NodeConfiguration& c : found->second)
            if (c.time_per_sample.value > 0 || c.parameters.value > 0 || c.memory_per_sample.value > 0 ||
                c.memory_fixed.value > 0 || !is_zero(c.receive_from) || !is_zero(c.send_to))
                return false;
    }
    return true;
}

// Does any configuration of the node pay for this neighbour?
bool pays_for(const ConfigurableNode& node, std::size_t neighbour) {
    for (const auto& [degree, list] : node.configurations)
        for (const NodeConfiguration& c : list)
            for (const auto* bytes : {&c.receive_from, &c.send_to})
                if (const auto found = bytes->find(neighbour);
                    found != bytes->end() && found->second.value > 0)
                    return true;
    return false;
}

}  // namespace

ReducedReplication without_free_nodes(const ReplicatedProblem& problem) {
    const std::size_t n = problem.nodes.size();
    std::set<int> degrees;
    for (const ConfigurableNode& node : problem.nodes)
        for (const auto& [degree, list] : node.configurations) degrees.insert(degree);
    std::vector<char> is_left_out(n, 0);
    for (std::size_t v = 0; v < n; ++v) is_left_out[v] = is_free(problem.nodes[v], degrees);
    for (auto [from, to, bytes] : problem.edges)
        for (auto [node, other] : {std::pair(from, to), std::pair(to, from)})
            if (bytes.value > 0 || pays_for(problem.nodes[other], node)) is_left_out[node] = 0;
    if (std::count(is_left_out.begin(), is_left_out.end(), 0) == 0)
        is_left_out[0] = 0;  // something must be placed

    ReducedReplication result;
    result.problem = problem;
    result.problem.nodes.clear();
    result.problem.edges.clear();
    std::vector<std::optional<std::size_t>> number(n);  // of the kept nodes
    for (std::size_t v = 0; v < n; ++v)
        if (!is_left_out[v]) {
            number[v] = result.kept.size();
            result.kept.push_back(v);
        }
    // Of each node that is left out, the kept nodes it comes after: its successors come after them too. Nodes
    // are in topological order.
    std::vector<std::set<std::size_t>> before(n);
    std::set<std::pair<std::size_t, std::size_t>> edges, ordered;
    for (auto [from, to, bytes] : problem.edges) edges.emplace(from, to);
    for (std::size_t v = 0; v < n; ++v)
        for (auto edge = edges.lower_bound({v, 0}); edge != edges.end() && edge->first == v; ++edge) {
            const std::size_t to = edge->second;
            if (is_left_out[to] && !is_left_out[v]) before[to].insert(v);
            if (!is_left_out[v]) continue;
            for (std::size_t first : before[v]) {
                if (is_left_out[to]) before[to].insert(first);
                else if (!edges.count({first, edge->second})) ordered.emplace(first, edge->second);
            }
        }
    for (auto [from, to, bytes] : problem.edges)
        if (!is_left_out[from] && !is_left_out[to])
            result.problem.edges.push_back({*number[from], *number[to], bytes});
    for (auto [from, to] : ordered)
        result.problem.edges.push_back({*number[from], *number[to], core::Bytes(0)});
    for (std::size_t v : result.kept) {
        ConfigurableNode node = problem.nodes[v];
        for (auto& [degree, list] : node.configurations)
            for (NodeConfiguration& c : list)
                for (auto* bytes : {&c.receive_from, &c.send_to}) {
                    std::map<std::size_t, core::Bytes> renumbered;
                    for (const auto& [neighbour, amount] : *bytes)
                        if (number[neighbour]) renumbered.emplace(*number[neighbour], amount);
                    *bytes = std::move(renumbered);
                }
        result.problem.nodes.push_back(std::move(node));
    }
    return result;
}

std::vector<ReplicatedStage> with_free_nodes(const ReplicatedProblem& problem,
                                             const ReducedReplication& reduced,
                                             const std::vector<ReplicatedStage>& stages) {
    std::vector<std::size_t> stage_of(problem.nodes.size()), configuration_of(problem.nodes.size(), 0);
    std::vector<char> is_kept(problem.nodes.size(), 0);
    for (std::size_t s = 0; s < stages.size(); ++s)
        for (std::size_t i = 0; i < stages[s].nodes.size(); ++i) {
            const std::size_t v = reduced.kept[stages[s].nodes[i]];
            is_kept[v] = 1;
            stage_of[v] = s;
            configuration_of[v] = stages[s].configurations[i];
        }
    std::vector<std::vector<std::size_t>> predecessors(problem.nodes.size());
    for (auto [from, to, bytes] : problem.edges) predecessors[to].push_back(from);
    for (std::size_t v = 0; v < problem.nodes.size(); ++v) {
        if (is_kept[v]) continue;
        stage_of[v] = 0;
        for (std::size_t p : predecessors[v]) stage_of[v] = std::max(stage_of[v], stage_of[p]);
    }
    std::vector<ReplicatedStage> result;
    int later = 0;
    for (const ReplicatedStage& stage : stages) later += stage.data;
    for (std::size_t s = 0; s < stages.size(); ++s) {
        std::vector<std::size_t> nodes, configurations;
        for (std::size_t v = 0; v < problem.nodes.size(); ++v)
            if (stage_of[v] == s) {
                nodes.push_back(v);
                configurations.push_back(configuration_of[v]);
            }
        later -= stages[s].data;
        result.push_back(evaluate_stage(problem, std::move(nodes), stages[s].data, stages[s].tensor,
                                        std::move(configurations), later));
    }
    return result;
}

}  // namespace partition
