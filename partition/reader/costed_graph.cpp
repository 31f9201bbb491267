#include "partition/reader/costed_graph.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/index/integers.h"
#include "core/reader.h"
#include "partition/reader/components.h"

namespace partition {

namespace {

struct FileNode {
    std::string name;
    std::optional<std::string> colocation;  // nodes of one word stay together
    core::Seconds time, cpu_time;
    core::Bytes memory, activations, output;
    std::optional<core::Seconds> output_time;
    bool only_cpu = false;
    std::vector<std::string> inputs;
    core::SourceLocation location;
};

void read_devices(const core::Value& list, std::optional<core::BytesPerSecond> bandwidth,
                  PlacementProblem& problem, core::Diagnostics& diagnostics) {
    for (std::size_t d = 0; d < list.size(); ++d) {
        core::TableReader reader(list.items()[d], fmt::format("device[{}]", d), diagnostics);
        DeviceClass device;
        device.name = reader.string("name", fmt::format("device{}", d));
        device.count = core::narrow<int>(reader.integer("count", 1, {.least = 0, .greatest = 10000}));
        device.is_cpu = reader.boolean("cpu", false);
        device.slowness = 1 / reader.real("speed", 1, {.least = 1e-9, .greatest = 1e9});
        if (!device.is_cpu) device.memory_limit = reader.optional_bytes("memory");
        if (!device.is_cpu && !device.memory_limit) device.memory_limit = problem.memory_limit;
        if (const auto own = reader.optional_bytes_per_second("bandwidth")) {
            if (!bandwidth)
                reader.error("bandwidth",
                             "a device's bandwidth is told against graph.bandwidth, which is missing");
            else if (own->value <= 0) reader.error("bandwidth", "bandwidth must be positive");
            else device.transfer_slowness = bandwidth->value / own->value;
        }
        reader.finish();
        problem.devices.push_back(device);
    }
    if (problem.devices.size() > most_device_classes)
        diagnostics.error(list.location, "device", fmt::format("{} kinds of devices", problem.devices.size()),
                          fmt::format("at most {} are told apart", most_device_classes));
}

}  // namespace

std::optional<PlacementProblem> read_costed_graph(const core::Value& document, core::Diagnostics& diagnostics,
                                                  const CostedGraphOverrides& overrides) {
    const std::size_t errors_before = diagnostics.error_count();
    core::TableReader top(document, "", diagnostics);
    const std::int64_t version = top.required_integer("version");
    if (top.has("version") && version != 1)
        top.error(
            "version",
            fmt::format("version = {} is not a version of costed graphs that this program reads", version),
            "it reads version = 1");
    PlacementProblem problem;
    std::optional<core::BytesPerSecond> bandwidth = overrides.bandwidth;
    bool trains = true;
    if (const core::Value* table = top.optional_table("graph")) {
        core::TableReader reader(*table, "graph", diagnostics);
        reader.ignore("name");
        problem.accelerators =
            core::narrow<int>(reader.integer("devices", 1, {.least = 0, .greatest = 10000}));
        problem.cpus = core::narrow<int>(reader.integer("cpus", 0, {.least = 0, .greatest = 10000}));
        if (const auto memory = reader.optional_bytes("memory")) problem.memory_limit = *memory;
        const auto own = reader.optional_bytes_per_second("bandwidth");
        if (own && own->value <= 0) reader.error("bandwidth", "bandwidth must be positive");
        if (!bandwidth) bandwidth = own;
        problem.micro_batches =
            core::narrow<int>(reader.integer("micro_batches", 1, {.least = 1, .greatest = 1 << 20}));
        trains = reader.boolean("training", true);
        reader.finish();
    }
    if (const core::Value* devices = top.optional_array("device"))
        read_devices(*devices, bandwidth, problem, diagnostics);
    const core::Value* list = top.required_array("node");
    top.finish();
    if (!list || diagnostics.error_count() > errors_before) return std::nullopt;

    std::vector<FileNode> nodes;
    std::map<std::string, std::size_t> index_of, group_of;
    for (std::size_t i = 0; i < list->size(); ++i) {
        core::TableReader reader(list->items()[i], fmt::format("node[{}]", i), diagnostics);
        FileNode node;
        node.location = reader.location();
        node.name = reader.required_string("name");
        node.time = reader.required_seconds("time");
        node.cpu_time = reader.optional_seconds("cpu_time").value_or(node.time);
        node.memory = reader.optional_bytes("memory").value_or(core::Bytes(0));
        node.activations = reader.optional_bytes("activations").value_or(core::Bytes(0));
        node.output = reader.optional_bytes("output").value_or(core::Bytes(0));
        node.output_time = reader.optional_seconds("output_time");
        for (auto [key, amount] :
             {std::pair("time", node.time.value), std::pair("cpu_time", node.cpu_time.value),
              std::pair("output_time", node.output_time.value_or(core::Seconds(0)).value)})
            if (amount > 1e15 && reader.has(key))
                reader.error(key, fmt::format("{} is more than 1e15 s", reader.path_of(key)),
                             "give at most 1e15s");
        for (auto [key, amount] :
             {std::pair("memory", node.memory.value), std::pair("activations", node.activations.value),
              std::pair("output", node.output.value)})
            if (amount > 1e18)
                reader.error(key, fmt::format("{} is more than 1e18 bytes", reader.path_of(key)),
                             "give at most 1e18B");
        if (node.name.empty() && reader.has("name"))
            reader.error("name", fmt::format("{} is empty", reader.path_of("name")),
                         "every node needs a name of its own");
        node.only_cpu = reader.boolean("only_cpu", false);
        node.colocation = reader.optional_string("colocate");
        if (node.colocation && node.colocation->empty()) node.colocation = std::nullopt;
        node.inputs = reader.optional_strings("inputs").value_or(std::vector<std::string>());
        if (node.output.value > 0 && !node.output_time && !bandwidth)
            reader.error("output", "output is in bytes, but no bandwidth is given",
                         "give graph.bandwidth, --bandwidth, or output_time");
        if (!index_of.emplace(node.name, nodes.size()).second)
            reader.error("name", fmt::format("node {} appears twice", core::in_quotes(node.name)));
        reader.finish();
        nodes.push_back(std::move(node));
    }
    if (nodes.empty()) top.error("node", "the graph has no nodes");

    // Groups: nodes colocated by name, then whatever lies on a cycle of groups.
    std::vector<std::size_t> group(nodes.size());
    std::size_t groups = 0;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
        if (!nodes[i].colocation) {
            group[i] = groups++;
            continue;
        }
        const auto [entry, is_new] = group_of.emplace(*nodes[i].colocation, groups);
        groups += is_new;
        group[i] = entry->second;
    }
    std::vector<Edge> edges, node_edges;
    for (std::size_t i = 0; i < nodes.size(); ++i)
        for (const std::string& input : nodes[i].inputs) {
            const auto found = index_of.find(input);
            if (found == index_of.end()) {
                std::vector<std::string> names;
                for (const FileNode& node : nodes) names.push_back(node.name);
                const std::string near = core::did_you_mean(input, names);
                diagnostics.error(nodes[i].location, fmt::format("node[{}].inputs", i),
                                  fmt::format("{} names no node", core::in_quotes(input)),
                                  near.empty() ? "" : "did you mean " + near + "?");
                continue;
            }
            node_edges.emplace_back(found->second, i);
            if (group[found->second] != group[i]) edges.emplace_back(group[found->second], group[i]);
        }
    if (diagnostics.error_count() > errors_before) return std::nullopt;
    const std::vector<std::size_t> node_component = strong_components(nodes.size(), node_edges);
    for (auto [from, to] : node_edges)
        if (node_component[from] == node_component[to]) {
            diagnostics.error(nodes[to].location, fmt::format("node[{}].inputs", to),
                              fmt::format("nodes {} and {} lie on a cycle", core::in_quotes(nodes[from].name),
                                          core::in_quotes(nodes[to].name)));
            return std::nullopt;
        }
    const std::vector<std::size_t> item_of_group = item_of_groups(groups, edges, !overrides.is_contiguous);
    auto item_of = [&](std::size_t node) { return item_of_group[group[node]]; };
    problem.items.resize(*std::max_element(item_of_group.begin(), item_of_group.end()) + 1);
    for (std::size_t i = 0; i < nodes.size(); ++i) {
        PlacementItem& item = problem.items[item_of(i)];
        item.nodes.push_back(static_cast<std::int64_t>(i));
        item.accelerator_time += nodes[i].time;
        item.cpu_time += nodes[i].cpu_time;
        item.memory += nodes[i].memory;
        item.activations += nodes[i].activations;
        item.runs_on_accelerator = item.runs_on_accelerator && !nodes[i].only_cpu;
        problem.node_names.push_back(nodes[i].name);
    }
    std::set<Edge> precedence;
    std::vector<std::set<std::size_t>> destinations(nodes.size());
    for (auto [from, to] : node_edges) {
        const std::size_t a = item_of(from), b = item_of(to);
        if (a == b) continue;
        if (a < b) precedence.emplace(a, b);  // edges of a cycle whose groups are kept apart may run back
        destinations[from].insert(b);
    }
    problem.precedence.assign(precedence.begin(), precedence.end());
    const double directions = trains ? 2 : 1;  // gradients return
    for (std::size_t i = 0; i < nodes.size(); ++i) {
        if (destinations[i].empty()) continue;
        Transfer transfer{.source = item_of(i),
                          .destinations = {destinations[i].begin(), destinations[i].end()},
                          .time = {},
                          .bytes = nodes[i].output * directions};
        transfer.time = nodes[i].output_time ? *nodes[i].output_time * directions
                        : bandwidth          ? nodes[i].output * directions / *bandwidth
                                             : core::Seconds(0);
        if (transfer.time.value > 0 || transfer.bytes.value > 0)
            problem.transfers.push_back(std::move(transfer));
    }
    return problem;
}

}  // namespace partition
