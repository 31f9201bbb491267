#include "partition/reader/piper.h"

#include <charconv>
#include <set>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/index/integers.h"
#include "core/reader.h"
#include "partition/reader/components.h"

namespace partition {

namespace {

constexpr std::int64_t largest_id = std::int64_t{1} << 53;

std::optional<std::int64_t> whole_number(const std::string& text) {
    std::int64_t value = 0;
    auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (failure != std::errc{} || end != text.data() + text.size()) return std::nullopt;
    return value;
}

// A table whose keys are numbers, e.g. {"3": 0.0}.
std::map<std::int64_t, core::Bytes> read_numbered(core::TableReader& reader, std::string_view key,
                                                  core::Diagnostics& diagnostics) {
    std::map<std::int64_t, core::Bytes> result;
    const core::Value* table = reader.required_table(key);
    if (!table) return result;
    for (const auto& [name, value] : table->members()) {
        std::optional<std::int64_t> id = whole_number(name);
        if (!id)
            diagnostics.error(value.key_location, reader.path_of(key),
                              fmt::format("key {} is not a node id", core::in_quotes(name)));
        else if (!value.is_number() || !(value.number() >= 0) || value.number() > 1e18)
            diagnostics.error(value.location, reader.path_of(key),
                              fmt::format("the value of {} is not a number of bytes", core::in_quotes(name)));
        else result[*id] = core::Bytes(value.number());
    }
    return result;
}

}  // namespace

std::optional<ReplicatedProblem> read_piper(const core::Value& document, core::Diagnostics& diagnostics) {
    const std::size_t errors_before = diagnostics.error_count();
    core::TableReader top(document, "", diagnostics);
    ReplicatedProblem problem;
    problem.memory_limit =
        core::Bytes(top.required_real("maxMemoryPerDevice", {.least = 0, .greatest = 1e18}));
    problem.devices = core::narrow<int>(top.required_integer("maxDevices", {.least = 1, .greatest = 10000}));
    problem.bandwidth =
        core::BytesPerSecond(top.required_real("bandwidth", {.least = 1e-9, .greatest = 1e18}));
    problem.micro_batches =
        core::narrow<int>(top.required_integer("mbsInBatch", {.least = 1, .greatest = 1 << 20}));
    const core::Value* node_list = top.required_array("nodes");
    const core::Value* edge_list = top.required_array("edges");
    if (!node_list || !edge_list) return std::nullopt;

    struct FileConfiguration {
        NodeConfiguration configuration;
        std::map<std::int64_t, core::Bytes> receive_from, send_to;
        core::SourceLocation location;
    };
    struct FileNode {
        std::int64_t id = 0;
        std::string name;
        std::map<int, std::vector<FileConfiguration>> configurations;
    };
    std::vector<FileNode> nodes;
    std::map<std::int64_t, std::size_t> index_of;
    for (std::size_t i = 0; i < node_list->size(); ++i) {
        core::TableReader reader(node_list->items()[i], fmt::format("nodes[{}]", i), diagnostics);
        FileNode node;
        node.id = reader.required_integer("id", {.least = -largest_id, .greatest = largest_id});
        node.name = reader.string("name", "");
        if (!index_of.emplace(node.id, nodes.size()).second)
            reader.error("id", fmt::format("node id {} appears twice", node.id));
        const core::Value* by_degree = reader.required_table("TMPCs");
        for (std::size_t m = 0; by_degree && m < by_degree->size(); ++m) {
            const auto& [key, list] = by_degree->members()[m];
            std::optional<std::int64_t> degree = whole_number(key);
            if (!degree || *degree < 1 || *degree > 10000) {
                diagnostics.error(list.key_location, reader.path_of("TMPCs"),
                                  fmt::format("key {} is not a number of devices", core::in_quotes(key)),
                                  "use 1 to 10000");
                continue;
            }
            if (!list.is_array()) {
                diagnostics.error(list.location, reader.path_of("TMPCs"),
                                  fmt::format("the configurations for {} devices are not an array", *degree));
                continue;
            }
            for (std::size_t c = 0; c < list.size(); ++c) {
                core::TableReader one(list.items()[c], fmt::format("nodes[{}].TMPCs.{}[{}]", i, *degree, c),
                                      diagnostics);
                FileConfiguration configuration;
                configuration.location = one.location();
                configuration.configuration.name = one.required_string("id");
                configuration.configuration.time_per_sample =
                    core::Seconds(one.required_real("timePerSample", {.least = 0, .greatest = 1e15}));
                configuration.configuration.parameters =
                    core::Bytes(one.required_real("parameterSize", {.least = 0, .greatest = 1e18}));
                configuration.configuration.memory_per_sample =
                    core::Bytes(one.required_real("memoryUsageA", {.least = 0, .greatest = 1e18}));
                configuration.configuration.memory_fixed =
                    core::Bytes(one.required_real("memoryUsageB", {.least = 0, .greatest = 1e18}));
                configuration.receive_from = read_numbered(one, "syncTimeFw", diagnostics);
                configuration.send_to = read_numbered(one, "syncTimeBw", diagnostics);
                node.configurations[static_cast<int>(*degree)].push_back(std::move(configuration));
            }
        }
        bool has_any = false;
        for (const auto& [degree, list] : node.configurations) has_any = has_any || !list.empty();
        if (by_degree && !has_any)
            reader.error("TMPCs", fmt::format("node {} has no configuration at all", node.id));
        nodes.push_back(std::move(node));
    }
    if (nodes.empty()) top.error("nodes", "the graph has no nodes");

    std::vector<Edge> edges;
    std::vector<core::Bytes> bytes;
    std::set<Edge> unique_edges;
    for (std::size_t i = 0; i < edge_list->size(); ++i) {
        core::TableReader reader(edge_list->items()[i], fmt::format("edges[{}]", i), diagnostics);
        std::int64_t from =
            reader.required_integer("sourceId", {.least = -largest_id, .greatest = largest_id});
        std::int64_t to = reader.required_integer("destId", {.least = -largest_id, .greatest = largest_id});
        core::Bytes cost(reader.required_real("communicationCost", {.least = 0, .greatest = 1e18}));
        auto a = index_of.find(from), b = index_of.find(to);
        if (a == index_of.end() && reader.has("sourceId"))
            reader.error("sourceId", fmt::format("sourceId = {} names no node", from));
        if (b == index_of.end() && reader.has("destId"))
            reader.error("destId", fmt::format("destId = {} names no node", to));
        if (a == index_of.end() || b == index_of.end()) continue;
        if (!unique_edges.emplace(a->second, b->second).second) {
            reader.error("destId", fmt::format("the edge from {} to {} appears twice", from, to),
                         "give one edge with the sum of the bytes");
            continue;
        }
        edges.emplace_back(a->second, b->second);
        bytes.push_back(cost);
    }
    if (diagnostics.error_count() > errors_before) return std::nullopt;
    const std::vector<std::size_t> component = strong_components(nodes.size(), edges);
    for (std::size_t i = 0; i < edges.size(); ++i)
        if (component[edges[i].first] == component[edges[i].second]) {
            top.error("edges", fmt::format("nodes {} and {} lie on a cycle", nodes[edges[i].first].id,
                                           nodes[edges[i].second].id));
            return std::nullopt;
        }
    const std::vector<std::size_t> number = topological_numbers(component, edges);
    auto position_of = [&](std::size_t file_index) { return number[component[file_index]]; };

    problem.nodes.resize(nodes.size());
    for (std::size_t i = 0; i < edges.size(); ++i)
        problem.edges.push_back({position_of(edges[i].first), position_of(edges[i].second), bytes[i]});
    for (std::size_t i = 0; i < nodes.size(); ++i) {
        ConfigurableNode& node = problem.nodes[position_of(i)];
        node.id = nodes[i].id;
        node.name = nodes[i].name;
        for (auto& [degree, list] : nodes[i].configurations)
            for (FileConfiguration& configuration : list) {
                auto translate = [&](const std::map<std::int64_t, core::Bytes>& from, bool is_receive,
                                     std::map<std::size_t, core::Bytes>& to) {
                    const char* key = is_receive ? "syncTimeFw" : "syncTimeBw";
                    for (auto [id, amount] : from) {
                        auto found = index_of.find(id);
                        bool is_edge =
                            found != index_of.end() && (is_receive ? unique_edges.count({found->second, i})
                                                                   : unique_edges.count({i, found->second}));
                        if (!is_edge)
                            diagnostics.error(
                                configuration.location, key,
                                fmt::format("{} of node {} names node {}, to which it has no such edge", key,
                                            nodes[i].id, id));
                        else to[position_of(found->second)] = amount;
                    }
                    for (auto [a, b] : unique_edges)
                        if ((is_receive ? b : a) == i && !from.count(nodes[is_receive ? a : b].id))
                            diagnostics.error(configuration.location, key,
                                              fmt::format("{} of node {} lacks its neighbour {}", key,
                                                          nodes[i].id, nodes[is_receive ? a : b].id));
                };
                translate(configuration.receive_from, true, configuration.configuration.receive_from);
                translate(configuration.send_to, false, configuration.configuration.send_to);
                node.configurations[degree].push_back(std::move(configuration.configuration));
            }
    }
    if (diagnostics.error_count() > errors_before) return std::nullopt;
    return problem;
}

}  // namespace partition
