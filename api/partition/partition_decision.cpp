#include "api/partition/partition_decision.h"

#include <algorithm>
#include <map>
#include <vector>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "partition/hierarchical/hierarchical_check.h"
#include "partition/replicated/replicated_check.h"

namespace api {

namespace {

using schedule::PartitionFile;

bool is_for_graph(const PartitionFile& file, const core::SourceLocation& location,
                  const std::string& graph_hash, core::Diagnostics& diagnostics) {
    if (file.graph_hash.empty() || file.graph_hash == graph_hash) return true;
    diagnostics.error(location, "partition.graph_hash",
                      fmt::format("the partition was decided for another graph: {} then, {} now",
                                  file.graph_hash, graph_hash),
                      "partition the graph again, or go back to the graph it was made for");
    return false;
}

// Nodes of every stage by number; each node of the graph in exactly one of them.
std::optional<std::vector<std::vector<std::size_t>>> nodes_of_stages(
    const PartitionFile& file, const core::SourceLocation& location,
    const std::map<std::string, std::size_t>& number_of, core::Diagnostics& diagnostics) {
    const std::size_t errors = diagnostics.error_count();
    std::vector<std::vector<std::size_t>> nodes(file.stages.size());
    std::map<std::size_t, std::size_t> holder;
    for (std::size_t s = 0; s < file.stages.size(); ++s)
        for (const std::string& name : file.stages[s].nodes) {
            const std::string key = fmt::format("partition.stage[{}].nodes", s);
            const auto found = number_of.find(name);
            if (found == number_of.end()) {
                diagnostics.error(location, key,
                                  fmt::format("{} names no node of the graph", core::in_quotes(name)));
                continue;
            }
            if (const auto [at, is_new] = holder.emplace(found->second, s); !is_new)
                diagnostics.error(
                    location, key,
                    fmt::format("{} is in stage {} already", core::in_quotes(name), at->second));
            nodes[s].push_back(found->second);
        }
    for (const auto& [name, number] : number_of) {
        if (diagnostics.error_count() > errors + 20) break;
        if (!holder.count(number))
            diagnostics.error(location, "partition.stage",
                              fmt::format("{} is in no stage", core::in_quotes(name)),
                              "name it in one stage");
    }
    if (diagnostics.error_count() > errors) return std::nullopt;
    return nodes;
}

// A configuration's name, told apart from others of its name.
std::string label_of(const std::vector<partition::NodeConfiguration>& list, std::size_t index) {
    const std::string& name = list[index].name;
    const auto is_named_so = [&](const partition::NodeConfiguration& c) { return c.name == name; };
    return std::count_if(list.begin(), list.end(), is_named_so) == 1 ? name
                                                                     : fmt::format("{}#{}", name, index);
}

}  // namespace

schedule::PartitionFile decision_of(const partition::PlacementProblem& problem,
                                    const partition::PlacementResult& result) {
    schedule::PartitionFile file;
    const std::vector<partition::DeviceClass> classes = partition::device_classes(problem);
    for (const partition::PlacedStage& stage : result.stages) {
        schedule::PartitionFile::Stage entry;
        entry.device = classes[stage.device_class].name;
        for (std::size_t item : stage.items)
            for (std::int64_t node : problem.items[item].nodes)
                entry.nodes.push_back(partition::node_name(problem, node));
        file.stages.push_back(std::move(entry));
    }
    file.is_proven_optimal = result.is_proven_optimal;
    return file;
}

std::optional<partition::PlacementResult> apply_decision(const schedule::PartitionFile& file,
                                                         const std::string& path,
                                                         const std::string& graph_hash,
                                                         std::optional<int> default_partition,
                                                         const partition::PlacementProblem& problem,
                                                         core::Diagnostics& diagnostics) {
    const std::size_t errors = diagnostics.error_count();
    const core::SourceLocation location{.file = path};
    if (!is_for_graph(file, location, graph_hash, diagnostics)) return std::nullopt;
    const std::vector<partition::DeviceClass> classes = partition::device_classes(problem);
    const std::vector<schedule::PartitionFile::Stage>& stages = file.stages;
    if (default_partition && *default_partition >= std::ssize(stages))
        diagnostics.error({}, "--default-partition",
                          fmt::format("default_partition = {} is not below partitions = {}",
                                      *default_partition, stages.size()));
    std::map<std::string, std::size_t> item_of;
    for (std::size_t i = 0; i < problem.items.size(); ++i)
        for (std::int64_t node : problem.items[i].nodes) item_of[partition::node_name(problem, node)] = i;
    std::vector<std::optional<std::size_t>> stage_of(problem.items.size());
    for (std::size_t s = 0; s < stages.size(); ++s)
        for (const std::string& name : stages[s].nodes) {
            std::vector<std::size_t> items;
            if (const auto found = item_of.find(name); found != item_of.end()) items.push_back(found->second);
            else  // a module: everything below it
                for (auto below = item_of.lower_bound(name + ".");
                     below != item_of.end() && below->first.starts_with(name + "."); ++below)
                    items.push_back(below->second);
            if (items.empty())
                diagnostics.error(location, fmt::format("partition.stage[{}].nodes", s),
                                  fmt::format("{} names no node of the graph", core::in_quotes(name)));
            for (std::size_t item : items) {
                std::optional<std::size_t>& holder = stage_of[item];
                if (holder && holder != s)
                    diagnostics.error(location, fmt::format("partition.stage[{}].nodes", s),
                                      fmt::format("{}, or what must stay beside it, is in stage {} already",
                                                  core::in_quotes(name), *holder));
                holder = s;
            }
        }
    for (std::size_t i = 0; i < stage_of.size(); ++i) {
        if (stage_of[i]) continue;
        if (default_partition) stage_of[i] = *default_partition;
        else
            diagnostics.error(location, "partition.stage",
                              fmt::format("{} is in no stage", core::in_quotes(partition::node_name(
                                                                   problem, problem.items[i].nodes.front()))),
                              "name it, or give --default-partition");
        if (diagnostics.error_count() > errors + 20) break;
    }
    if (diagnostics.error_count() > errors) return std::nullopt;
    partition::PlacementResult result;
    std::vector<int> used(classes.size(), 0);
    for (std::size_t s = 0; s < stages.size(); ++s) {
        std::vector<std::size_t> items;
        for (std::size_t i = 0; i < stage_of.size(); ++i)
            if (stage_of[i] == s) items.push_back(i);
        if (items.empty()) continue;
        std::size_t kind = 0;
        while (kind < classes.size() && classes[kind].name != stages[s].device) ++kind;
        if (kind == classes.size()) {
            diagnostics.error(
                location, fmt::format("partition.stage[{}].device", s),
                fmt::format("{} is no device of this problem", core::in_quotes(stages[s].device)));
            return std::nullopt;
        }
        if (++used[kind] > classes[kind].count) {
            diagnostics.error(location, fmt::format("partition.stage[{}].device", s),
                              fmt::format("more stages than the {} devices of kind {}", classes[kind].count,
                                          stages[s].device));
            return std::nullopt;
        }
        result.stages.push_back(partition::stage_of(problem, std::move(items), kind));
    }
    partition::settle_memory(problem, result.stages);
    result.objective = partition::largest_load(problem, result.stages);
    result.lower_bound = std::min(result.objective, partition::placement_lower_bound(problem));
    result.is_feasible = true;
    for (std::size_t s = 0; s < result.stages.size(); ++s) {
        const partition::DeviceClass& device = classes[result.stages[s].device_class];
        if (!device.has_room_for(result.stages[s].memory)) {
            result.is_feasible = false;
            result.reason =
                fmt::format("stage {} of the partition needs {}, its device has {}", s,
                            core::format(result.stages[s].memory), core::format(device.most_memory()));
            break;
        }
    }
    return result;
}

PartitionFile decision_of(const partition::ReplicatedProblem& problem,
                          const partition::ReplicatedResult& result) {
    PartitionFile file;
    for (const partition::ReplicatedStage& stage : result.stages) {
        PartitionFile::Stage entry{.device = "accelerator",
                                   .nodes = {},
                                   .replicas = {stage.data},
                                   .tensor_parallel = stage.tensor,
                                   .configurations = {}};
        for (std::size_t i = 0; i < stage.nodes.size(); ++i) {
            const partition::ConfigurableNode& node = problem.nodes[stage.nodes[i]];
            entry.nodes.push_back(std::to_string(node.id));
            entry.configurations.push_back(
                label_of(node.configurations.at(stage.tensor), stage.configurations[i]));
        }
        file.stages.push_back(std::move(entry));
    }
    file.is_proven_optimal = result.is_proven_optimal;
    return file;
}

PartitionFile decision_of(const partition::HierarchicalProblem& problem,
                          const partition::HierarchicalResult& result) {
    PartitionFile file;
    for (const partition::HierarchicalStage& stage : result.stages) {
        PartitionFile::Stage entry{
            .device = "accelerator", .nodes = {}, .replicas = {stage.replicas.begin(), stage.replicas.end()}};
        for (std::size_t v : stage.nodes) entry.nodes.push_back(problem.nodes[v].id);
        file.stages.push_back(std::move(entry));
    }
    file.is_proven_optimal = result.is_proven_optimal;
    return file;
}

std::optional<partition::ReplicatedResult> apply_decision(const PartitionFile& file, const std::string& path,
                                                          const partition::ReplicatedProblem& problem,
                                                          core::Diagnostics& diagnostics) {
    const core::SourceLocation location{.file = path};
    const std::size_t errors = diagnostics.error_count();
    if (!is_for_graph(file, location, partition::hash_of(problem), diagnostics)) return std::nullopt;
    std::map<std::string, std::size_t> number_of;
    for (std::size_t v = 0; v < problem.nodes.size(); ++v) number_of[std::to_string(problem.nodes[v].id)] = v;
    const auto nodes = nodes_of_stages(file, location, number_of, diagnostics);
    if (!nodes) return std::nullopt;
    std::vector<partition::ReplicatedStage> stages;
    for (std::size_t s = 0; s < file.stages.size(); ++s) {
        const PartitionFile::Stage& given = file.stages[s];
        const auto key = [&](const char* name) { return fmt::format("partition.stage[{}].{}", s, name); };
        if (given.replicas.size() > 1)
            diagnostics.error(location, key("replicas"),
                              fmt::format("{} levels of replicas; a stage of this format has one number",
                                          given.replicas.size()));
        if (given.configurations.empty()) {
            diagnostics.error(location, key("configurations"), "the configurations of the nodes are missing",
                              "name one a node, in their order");
            continue;
        }
        std::map<std::size_t, std::size_t>
            configuration_of;  // nodes ascend in a stage, in the file they stand as they like
        for (std::size_t i = 0; i < given.nodes.size(); ++i) {
            const partition::ConfigurableNode& node = problem.nodes[(*nodes)[s][i]];
            const auto list = node.configurations.find(given.tensor_parallel);
            const std::size_t count = list == node.configurations.end() ? 0 : list->second.size();
            std::size_t c = 0;
            while (c < count && label_of(list->second, c) != given.configurations[i]) ++c;
            if (c == count)
                diagnostics.error(
                    location, key("configurations"),
                    fmt::format("node {} has no configuration {} for {} devices", node.id,
                                core::in_quotes(given.configurations[i]), given.tensor_parallel));
            configuration_of[(*nodes)[s][i]] = c;
        }
        partition::ReplicatedStage stage{.nodes = {},
                                         .data = given.replicas.empty() ? 1 : given.replicas[0],
                                         .tensor = given.tensor_parallel,
                                         .configurations = {},
                                         .time = {},
                                         .memory = {}};
        for (auto [node, configuration] : configuration_of) {
            stage.nodes.push_back(node);
            stage.configurations.push_back(configuration);
        }
        stages.push_back(std::move(stage));
    }
    if (diagnostics.error_count() > errors) return std::nullopt;
    return partition::judge_replicated(problem, stages);
}

std::optional<partition::HierarchicalResult> apply_decision(const PartitionFile& file,
                                                            const std::string& path,
                                                            const partition::HierarchicalProblem& problem,
                                                            core::Diagnostics& diagnostics) {
    const core::SourceLocation location{.file = path};
    if (!is_for_graph(file, location, partition::hash_of(problem), diagnostics)) return std::nullopt;
    std::map<std::string, std::size_t> number_of;
    for (std::size_t v = 0; v < problem.nodes.size(); ++v) number_of[problem.nodes[v].id] = v;
    auto nodes = nodes_of_stages(file, location, number_of, diagnostics);
    if (!nodes) return std::nullopt;
    std::vector<partition::HierarchicalStage> stages;
    for (std::size_t s = 0; s < file.stages.size(); ++s) {
        std::sort((*nodes)[s].begin(), (*nodes)[s].end());
        partition::HierarchicalStage stage{
            .nodes = std::move((*nodes)[s]),
            .replicas = {file.stages[s].replicas.begin(), file.stages[s].replicas.end()},
            .load = {},
            .memory = {}};
        if (stage.replicas.empty()) stage.replicas.assign(problem.levels.size(), 1);
        stages.push_back(std::move(stage));
    }
    return partition::judge_hierarchical(problem, std::move(stages));
}

}  // namespace api
