#include "partition/reader/dnn_partitioning.h"

#include <algorithm>
#include <map>
#include <queue>
#include <set>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/index/integers.h"
#include "core/reader.h"
#include "partition/reader/components.h"

namespace partition {

namespace {

// 2^53: ids and counts beyond it are not exact in JSON.
constexpr std::int64_t largest_id = std::int64_t{1} << 53;

struct FileNode {
    std::int64_t id = 0;
    bool is_backward = false, runs_on_accelerator = true;
    core::Seconds cpu, accelerator;
    core::Bytes size;
    std::size_t group = 0;
};

bool read_flag(core::TableReader& reader, std::string_view key) {
    // The files say 0 and 1; true and false are as clear.
    const core::Value* value = reader.optional_any(key);
    if (value && value->kind() == core::Value::Kind::boolean) return value->boolean();
    return reader.required_integer(key, {.least = 0, .greatest = 1}) == 1;
}

}  // namespace

std::optional<PlacementProblem> read_dnn_partitioning(const core::Value& document,
                                                      core::Diagnostics& diagnostics, bool is_contiguous) {
    const std::size_t errors_before = diagnostics.error_count();
    core::TableReader top(document, "", diagnostics);
    PlacementProblem problem;
    problem.memory_limit = core::Bytes(top.required_real("maxSizePerFPGA", {.least = 0}));
    problem.accelerators =
        core::narrow<int>(top.required_integer("maxFPGAs", {.least = 0, .greatest = 10000}));
    problem.cpus = core::narrow<int>(top.required_integer("maxCPUs", {.least = 0, .greatest = 10000}));
    const core::Value* node_list = top.required_array("nodes");
    const core::Value* edge_list = top.required_array("edges");
    if (!node_list || !edge_list) return std::nullopt;

    std::vector<FileNode> nodes;
    std::map<std::int64_t, std::size_t> index_of;
    std::map<std::int64_t, std::size_t> group_of_color;
    std::size_t groups = 0;
    for (std::size_t i = 0; i < node_list->size(); ++i) {
        core::TableReader reader(node_list->items()[i], fmt::format("nodes[{}]", i), diagnostics);
        FileNode node;
        node.id = reader.required_integer("id", {.least = -largest_id, .greatest = largest_id});
        node.runs_on_accelerator = read_flag(reader, "supportedOnFpga");
        node.cpu = core::milliseconds(reader.required_real("cpuLatency", {.least = 0, .greatest = 1e15}));
        node.accelerator =
            core::milliseconds(reader.required_real("fpgaLatency", {.least = 0, .greatest = 1e15}));
        node.is_backward = read_flag(reader, "isBackwardNode");
        node.size = core::Bytes(reader.real("size", 0, {.least = 0, .greatest = 1e18}));
        if (auto color =
                reader.optional_integer("colorClass", {.least = -largest_id, .greatest = largest_id})) {
            auto [entry, is_new] = group_of_color.emplace(*color, groups);
            groups += is_new;
            node.group = entry->second;
        } else {
            node.group = groups++;
        }
        if (!index_of.emplace(node.id, nodes.size()).second)
            reader.error("id", fmt::format("node id {} appears twice", node.id),
                         "every node needs an id of its own");
        nodes.push_back(node);
    }
    if (nodes.empty()) top.error("nodes", "the graph has no nodes");

    struct FileEdge {
        std::size_t from, to;
    };
    std::vector<FileEdge> edges;
    std::vector<std::optional<core::Seconds>> output_time(nodes.size());
    for (std::size_t i = 0; i < edge_list->size(); ++i) {
        core::TableReader reader(edge_list->items()[i], fmt::format("edges[{}]", i), diagnostics);
        std::int64_t ends[2] = {
            reader.required_integer("sourceId", {.least = -largest_id, .greatest = largest_id}),
            reader.required_integer("destId", {.least = -largest_id, .greatest = largest_id})};
        core::Seconds time = core::milliseconds(reader.required_real("cost", {.least = 0, .greatest = 1e15}));
        std::size_t index[2] = {};
        bool is_known = true;
        for (int end : {0, 1}) {
            auto found = index_of.find(ends[end]);
            if (found == index_of.end()) {
                const char* key = end == 0 ? "sourceId" : "destId";
                if (reader.has(key)) reader.error(key, fmt::format("{} = {} names no node", key, ends[end]));
                is_known = false;
            } else {
                index[end] = found->second;
            }
        }
        if (!is_known) continue;
        std::optional<core::Seconds>& transfer_time = output_time[index[0]];
        if (transfer_time && std::abs(transfer_time->value - time.value) > 1e-9)
            reader.error("cost",
                         fmt::format("node {} has edges of cost {} and {}: its output has one transfer time",
                                     ends[0], transfer_time->value * 1e3, time.value * 1e3),
                         "make the cost equal on all edges that leave one node");
        if (!transfer_time) transfer_time = time;
        if (index[0] == index[1])
            reader.error("destId", fmt::format("node {} feeds itself", ends[0]), "the graph must be acyclic");
        if (nodes[index[0]].is_backward && !nodes[index[1]].is_backward)
            reader.error(
                "destId",
                fmt::format("edge from backward node {} to forward node {}: backward comes after forward",
                            ends[0], ends[1]));
        edges.push_back({index[0], index[1]});
    }
    if (diagnostics.error_count() > errors_before) return std::nullopt;

    // The file itself must be acyclic.
    std::vector<Edge> node_edges;
    for (auto [from, to] : edges) node_edges.emplace_back(from, to);
    const std::vector<std::size_t> node_component = strong_components(nodes.size(), node_edges);
    std::map<std::size_t, std::size_t> first_of_component;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
        auto [first, is_new] = first_of_component.emplace(node_component[i], i);
        if (is_new) continue;
        top.error("edges",
                  fmt::format("nodes {} and {} lie on a cycle", nodes[first->second].id, nodes[i].id),
                  "the graph must be acyclic");
        return std::nullopt;
    }

    std::vector<char> has_forward(groups, 0);
    for (const FileNode& node : nodes)
        if (!node.is_backward) has_forward[node.group] = 1;
    std::vector<Edge> order;
    for (auto [from, to] : edges) {
        const FileNode &a = nodes[from], &b = nodes[to];
        if (a.group == b.group) continue;
        if (!a.is_backward && !b.is_backward) order.emplace_back(a.group, b.group);
        else if (a.is_backward && b.is_backward && (!has_forward[a.group] || !has_forward[b.group]))
            order.emplace_back(b.group, a.group);  // the forward twin of a gradient's path runs the other way
    }
    const std::vector<std::size_t> item_of_group = item_of_groups(groups, order, !is_contiguous);
    auto item_of = [&](const FileNode& node) { return item_of_group[node.group]; };

    problem.items.resize(*std::max_element(item_of_group.begin(), item_of_group.end()) + 1);
    for (const FileNode& node : nodes) {
        PlacementItem& item = problem.items[item_of(node)];
        item.nodes.push_back(node.id);
        item.accelerator_time += node.accelerator;
        item.cpu_time += node.cpu;
        item.memory += node.size;
        item.runs_on_accelerator = item.runs_on_accelerator && node.runs_on_accelerator;
    }
    for (PlacementItem& item : problem.items) std::sort(item.nodes.begin(), item.nodes.end());
    std::set<Edge> precedence;
    for (auto [before, after] : order) {
        const std::size_t a = item_of_group[before], b = item_of_group[after];
        if (a < b) precedence.emplace(a, b);  // edges inside a component end at one item, or may run back
    }
    problem.precedence.assign(precedence.begin(), precedence.end());

    std::vector<std::set<std::size_t>> destinations(nodes.size());
    for (auto [from, to] : edges)
        if (item_of(nodes[from]) != item_of(nodes[to])) destinations[from].insert(item_of(nodes[to]));
    // Outputs with the same ends always move together: one transfer of their sum.
    std::map<std::pair<std::size_t, std::vector<std::size_t>>, core::Seconds> merged;
    for (std::size_t i = 0; i < nodes.size(); ++i)
        if (!destinations[i].empty() && output_time[i]->value > 0)
            merged[{item_of(nodes[i]), std::vector<std::size_t>(destinations[i].begin(),
                                                                destinations[i].end())}] += *output_time[i];
    for (const auto& [ends, time] : merged) problem.transfers.push_back({ends.first, ends.second, time});
    return problem;
}

std::optional<std::vector<PlacedStage>> read_dnn_partitioning_split(const core::Value& document,
                                                                    const PlacementProblem& problem,
                                                                    core::Diagnostics& diagnostics) {
    const std::size_t errors_before = diagnostics.error_count();
    std::map<std::int64_t, std::size_t> item_of;
    for (std::size_t i = 0; i < problem.items.size(); ++i)
        for (std::int64_t node : problem.items[i].nodes) item_of[node] = i;
    core::TableReader top(document, "", diagnostics);
    std::vector<std::optional<std::size_t>> device_of(problem.items.size());
    std::vector<PlacedStage> stages;
    for (const char* kind : {"cpus", "fpgas"}) {
        const bool is_cpu = kind == std::string_view("cpus");
        const core::Value* devices = top.required_array(kind);
        for (std::size_t d = 0; devices && d < devices->size(); ++d) {
            core::TableReader device(devices->items()[d], fmt::format("{}[{}]", kind, d), diagnostics);
            std::set<std::size_t> items;
            for (std::int64_t id : device.optional_integers("nodes").value_or(std::vector<std::int64_t>{})) {
                auto found = item_of.find(id);
                if (found == item_of.end()) {
                    device.error("nodes", fmt::format("node {} is not in the graph", id));
                    continue;
                }
                std::optional<std::size_t>& holder = device_of[found->second];
                if (holder && *holder != stages.size())
                    device.error(
                        "nodes",
                        fmt::format("node {} or one that must stay beside it is on another device already",
                                    id));
                holder = stages.size();
                items.insert(found->second);
            }
            stages.push_back(stage_of(problem, {items.begin(), items.end()}, is_cpu ? 1 : 0));
        }
    }
    for (std::size_t i = 0; i < problem.items.size(); ++i)
        if (!device_of[i])
            top.error("fpgas", fmt::format("node {} is on no device", problem.items[i].nodes.front()));
    if (diagnostics.error_count() > errors_before) return std::nullopt;
    return stages;
}

}  // namespace partition
