#include "partition/replicated/replicated_check.h"

#include <algorithm>
#include <limits>
#include <optional>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "partition/graph_hash.h"

namespace partition {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

std::string infeasibility(const ReplicatedProblem& problem, const std::vector<ReplicatedStage>& stages) {
    std::vector<std::optional<std::size_t>> stage_of(problem.nodes.size());
    std::int64_t devices = 0, replicas = 0;
    for (std::size_t s = 0; s < stages.size(); ++s) {
        const ReplicatedStage& stage = stages[s];
        if (stage.nodes.empty()) return fmt::format("stage {} holds no node", s);
        if (stage.data < 1 || problem.micro_batches % stage.data != 0)
            return fmt::format(
                "the {} data-parallel replicas of stage {} do not divide the {} micro-batches of a batch",
                stage.data, s, problem.micro_batches);
        devices += static_cast<std::int64_t>(stage.data) * stage.tensor;
        replicas += stage.data;
        for (std::size_t v : stage.nodes) {
            stage_of[v] = s;
            const auto& configurations = problem.nodes[v].configurations;
            if (const auto found = configurations.find(stage.tensor);
                found == configurations.end() || found->second.empty())
                return fmt::format("node {} of stage {} has no configuration for {} devices",
                                   problem.nodes[v].id, s, stage.tensor);
        }
    }
    if (devices > problem.devices)
        return fmt::format("the stages take {} devices, there are {}", devices, problem.devices);
    if (replicas > problem.micro_batches)
        return fmt::format("the stages have {} data-parallel replicas together, a batch has {} micro-batches",
                           replicas, problem.micro_batches);
    for (std::size_t v = 0; v < problem.nodes.size(); ++v)
        if (!stage_of[v]) return fmt::format("node {} is in no stage", problem.nodes[v].id);
    for (const ReplicatedProblem::Edge& edge : problem.edges)
        if (const std::size_t from = *stage_of[edge.from], to = *stage_of[edge.to]; from > to)
            return fmt::format("node {} of stage {} feeds node {} of the earlier stage {}",
                               problem.nodes[edge.from].id, from, problem.nodes[edge.to].id, to);
    return {};
}

}  // namespace

std::string hash_of(const ReplicatedProblem& problem) {
    GraphHash hash;
    auto add_extra = [&](const std::map<std::size_t, core::Bytes>& extra) {
        for (const auto& [neighbour, bytes] : extra) {
            hash.add(neighbour);
            hash.add_number(bytes.value);
        }
    };
    for (const ConfigurableNode& node : problem.nodes) {
        hash.add(static_cast<std::uint64_t>(node.id));
        for (const auto& [tensor, list] : node.configurations)
            for (const NodeConfiguration& c : list) {
                hash.add(static_cast<std::uint64_t>(tensor));
                hash.add_letters(c.name);
                for (double number : {c.time_per_sample.value, c.parameters.value, c.memory_per_sample.value,
                                      c.memory_fixed.value})
                    hash.add_number(number);
                add_extra(c.receive_from);
                add_extra(c.send_to);
            }
    }
    for (const ReplicatedProblem::Edge& edge : problem.edges) {
        hash.add(edge.from << 32 | edge.to);
        hash.add_number(edge.bytes.value);
    }
    return hash.text();
}

core::Seconds replicated_lower_bound(const ReplicatedProblem& problem) {
    const int most_replicas = std::min(problem.micro_batches, problem.devices);
    double work = 0, slowest = 0;
    for (const ConfigurableNode& node : problem.nodes) {
        double least_work = infinity, least_time = infinity;
        for (const auto& [tensor, list] : node.configurations) {
            int most = std::min(most_replicas, problem.devices / tensor);
            while (most > 0 && problem.micro_batches % most != 0) --most;
            for (const NodeConfiguration& c : list) {
                least_work = std::min(least_work, tensor * c.time_per_sample.value);
                if (most > 0) least_time = std::min(least_time, c.time_per_sample.value / most);
            }
        }
        work += least_work;
        slowest = std::max(slowest, least_time);
    }
    return core::Seconds(std::max(slowest, work / problem.devices));
}

ReplicatedResult judge_replicated(const ReplicatedProblem& problem,
                                  const std::vector<ReplicatedStage>& stages) {
    ReplicatedResult result;
    result.reason = infeasibility(problem, stages);
    if (!result.reason.empty()) return result;
    int later = 0;
    for (const ReplicatedStage& stage : stages) later += stage.data;
    for (const ReplicatedStage& stage : stages) {
        later -= stage.data;
        result.stages.push_back(
            evaluate_stage(problem, stage.nodes, stage.data, stage.tensor, stage.configurations, later));
        result.objective = std::max(result.objective, result.stages.back().time);
        if (result.reason.empty() && result.stages.back().memory > problem.memory_limit * (1 + 1e-12))
            result.reason =
                fmt::format("stage {} of the partition needs {} on each of its devices, which have {}",
                            result.stages.size() - 1, core::format(result.stages.back().memory),
                            core::format(problem.memory_limit));
    }
    result.is_feasible = result.reason.empty();
    result.lower_bound = std::min(result.objective, replicated_lower_bound(problem));
    return result;
}

}  // namespace partition
