#include "api/partition/partition_answer.h"

#include <fmt/core.h>

#include "core/diagnostics.h"

namespace api {

namespace {

// Six decimals, or as many digits where those would say nothing.
std::string number(double value) {
    return value == 0 || (value >= 1e-3 && value < 1e9) ? fmt::format("{:.6f}", value)
                                                        : fmt::format("{:.6g}", value);
}

std::string summary(double objective, double lower_bound, const std::string& unit, bool is_proven,
                    bool is_contiguous) {
    std::string text = fmt::format("largest load {} {}", number(objective), unit);
    if (is_proven)
        return text +
               (is_contiguous ? ", proven optimal among contiguous placements\n" : ", proven optimal\n");
    return text + fmt::format(", lower bound {} {} (gap {:.2f} %)\n", number(lower_bound), unit,
                              objective > 0 ? 100 * (objective - lower_bound) / objective : 0);
}

std::string list_nodes(const core::Value& nodes) {
    std::string text;
    for (std::size_t i = 0; i < nodes.size() && i < 12; ++i) {
        const core::Value& node = nodes.items()[i];
        text += fmt::format("{}{}", i ? " " : "",
                            node.is_string() ? node.string() : std::to_string(node.integer()));
    }
    if (nodes.size() > 12) text += fmt::format(" ... ({} nodes)", nodes.size());
    return text;
}

// What every kind of problem answers first, in the unit of its times; without a placement only the reason.
template <class Result>
PartitionAnswer answer_with(const Result& result, const char* unit, double scale = 1) {
    PartitionAnswer answer;
    answer.is_feasible = result.is_feasible;
    answer.is_proven_infeasible = result.is_proven_infeasible;
    answer.reason = result.reason;
    if (!result.is_feasible) return answer;
    answer.document["objective"] = result.objective.value * scale;
    answer.document["unit"] = unit;
    answer.document["proven_optimal"] = result.is_proven_optimal;
    answer.document["lower_bound"] = result.lower_bound.value * scale;
    return answer;
}

core::Value entry_with(core::Value nodes, core::Seconds load, core::Bytes memory, double scale = 1) {
    core::Value entry;
    entry["nodes"] = std::move(nodes);
    entry["load"] = load.value * scale;
    entry["memory"] = memory.value;
    return entry;
}

}  // namespace

PartitionAnswer answer_of(const partition::PlacementProblem& problem,
                          const partition::PlacementResult& result, bool is_contiguous, PlacementUnit unit) {
    const double scale = unit == PlacementUnit::milliseconds ? 1e3 : 1;
    PartitionAnswer answer = answer_with(result, unit == PlacementUnit::milliseconds ? "ms" : "s", scale);
    if (!result.is_feasible) return answer;
    core::Value stages = core::Value::array();
    // Models and costed graphs have loads of any size: milliseconds are easier to read.
    answer.text = summary(result.objective.value * 1e3, result.lower_bound.value * 1e3, "ms",
                          result.is_proven_optimal, is_contiguous);
    const std::vector<partition::DeviceClass> classes = partition::device_classes(problem);
    for (const partition::PlacedStage& stage : result.stages) {
        core::Value nodes = core::Value::array();
        for (std::size_t item : stage.items)
            for (std::int64_t node : problem.items[item].nodes) {
                if (problem.node_names.empty()) nodes.append(node);
                else nodes.append(partition::node_name(problem, node));
            }
        const std::string& device = classes[stage.device_class].name;
        answer.text += fmt::format("  {:<11} {:>12.6f} ms  {:>10}  {}\n",
                                   stage.is_cpu && device == "cpu" ? "CPU" : device, stage.load.value * 1e3,
                                   core::format(stage.memory), list_nodes(nodes));
        core::Value entry = entry_with(std::move(nodes), stage.load, stage.memory, scale);
        entry["device"] = device;
        stages.append(std::move(entry));
    }
    answer.document["stages"] = std::move(stages);
    return answer;
}

PartitionAnswer answer_of(const partition::ReplicatedProblem& problem,
                          const partition::ReplicatedResult& result) {
    PartitionAnswer answer = answer_with(result, "s per sample");
    if (!result.is_feasible) return answer;
    core::Value stages = core::Value::array();
    answer.text = summary(result.objective.value, result.lower_bound.value, "s per sample",
                          result.is_proven_optimal, true);
    for (const partition::ReplicatedStage& stage : result.stages) {
        core::Value nodes = core::Value::array(), configurations = core::Value::array();
        for (std::size_t i = 0; i < stage.nodes.size(); ++i) {
            const partition::ConfigurableNode& node = problem.nodes[stage.nodes[i]];
            nodes.append(node.id);
            configurations.append(node.configurations.at(stage.tensor)[stage.configurations[i]].name);
        }
        answer.text +=
            fmt::format("  data {:>3} x tensor {:>2} {:>14.9f} s  {:>10}  {}\n", stage.data, stage.tensor,
                        stage.time.value, core::format(stage.memory), list_nodes(nodes));
        core::Value entry = entry_with(std::move(nodes), stage.time, stage.memory);
        entry["data_parallel"] = stage.data;
        entry["tensor_parallel"] = stage.tensor;
        entry["configurations"] = std::move(configurations);
        stages.append(std::move(entry));
    }
    answer.document["stages"] = std::move(stages);
    return answer;
}

PartitionAnswer answer_of(const partition::HierarchicalProblem& problem,
                          const partition::HierarchicalResult& result) {
    PartitionAnswer answer = answer_with(result, "s");
    if (!result.is_feasible) return answer;
    answer.document["data_parallel"] = result.data_parallel.value;
    answer.document["states"] = static_cast<std::int64_t>(result.states);
    answer.text =
        summary(result.objective.value, result.lower_bound.value, "s", result.is_proven_optimal, true) +
        fmt::format("everything replicated: {} s{}\n", number(result.data_parallel.value),
                    result.states > 0 ? fmt::format("; {} cuts of the data flow", result.states) : "");
    core::Value stages = core::Value::array();
    for (const partition::HierarchicalStage& stage : result.stages) {
        core::Value nodes = core::Value::array(), replicas = core::Value::array();
        std::string degrees;
        for (std::size_t v : stage.nodes) nodes.append(problem.nodes[v].id);
        for (int r : stage.replicas) {
            replicas.append(static_cast<std::int64_t>(r));
            degrees += fmt::format("{}{}", degrees.empty() ? "" : " x ", r);
        }
        const std::string &first = problem.nodes[stage.nodes.front()].id,
                          &last = problem.nodes[stage.nodes.back()].id;
        answer.text +=
            fmt::format("  replicas {:<8} {:>12.6f} s  {:>10}  {} ... {} ({} nodes)\n", degrees,
                        stage.load.value, core::format(stage.memory), first, last, stage.nodes.size());
        core::Value entry = entry_with(std::move(nodes), stage.load, stage.memory);
        entry["replicas"] = std::move(replicas);
        stages.append(std::move(entry));
    }
    answer.document["stages"] = std::move(stages);
    return answer;
}

}  // namespace api
