#include "cluster/profile/profile_topology.h"

#include <algorithm>
#include <charconv>

#include "cluster/build_topology.h"
#include "cluster/profile/profile_device.h"
#include "core/diagnostics.h"
#include "core/index/integers.h"

namespace cluster {

namespace {

std::string in_words(int number) { return std::to_string(number); }

// "gpu0..3" is gpu0, gpu1, gpu2, gpu3; any other text is itself. Nothing when the range is backwards or
// longer than a node can be.
std::optional<std::vector<std::string>> expand(const std::string& text) {
    std::size_t dots = text.find("..");
    if (dots == std::string::npos) return std::vector<std::string>{text};
    std::size_t digits = dots;
    while (digits > 0 && text[digits - 1] >= '0' && text[digits - 1] <= '9') --digits;
    int first = 0, last = 0;
    const char* end = text.data() + text.size();
    auto [first_end, first_error] = std::from_chars(text.data() + digits, text.data() + dots, first);
    auto [last_end, last_error] = std::from_chars(text.data() + dots + 2, end, last);
    if (first_error != std::errc() || last_error != std::errc() || first_end != text.data() + dots ||
        last_end != end)
        return std::nullopt;
    if (last < first || last - first >= most_vertices) return std::nullopt;
    std::vector<std::string> names;
    for (int i = first; i <= last; ++i) names.push_back(text.substr(0, digits) + std::to_string(i));
    return names;
}

class TopologyReader {
public:
    TopologyReader(const core::Value& table, InstanceType& instance, int cards, ProfileContext& context)
        : instance_(instance), cards_(cards), context_(context), section_(table, "topology", context) {}

    void read() {
        core::TableReader& reader = section_.reader();
        const std::string prefix = reader.string("device_name", "gpu");
        for (int i = 0; i < instance_.devices; ++i)
            instance_.vertices.push_back({prefix + std::to_string(i), VertexKind::device, 0});
        read_vertices("hosts", VertexKind::host);
        read_vertices("nvswitches", VertexKind::nvswitch);
        read_vertices("pcie_switches", VertexKind::pcie_switch);
        read_vertices("nics", VertexKind::nic);
        specs_ = instance_.device.links;
        if (const core::Value* links = reader.optional_table("link"))
            for (LinkSpec& spec : read_link_specs(*links, "topology.link", context_)) {
                std::erase_if(specs_, [&](const LinkSpec& other) { return other.name == spec.name; });
                specs_.push_back(std::move(spec));
            }
        section_.figure("mesh");
        if (const core::Value* mesh = reader.optional_table("mesh")) read_mesh(*mesh);
        section_.figure("connect");
        if (const core::Value* connect = reader.optional_array("connect"))
            for (std::size_t i = 0; i < connect->size() && !is_full_; ++i)
                read_connection(connect->items()[i], "topology.connect[" + std::to_string(i) + "]");
        add_network();
        section_.finish();
        if (!context_.diagnostics.has_errors()) check_connected();
    }

private:
    void read_vertices(const std::string& key, VertexKind kind) {
        for (const std::string& text :
             section_.reader().optional_strings(key).value_or(std::vector<std::string>{})) {
            std::optional<std::vector<std::string>> names = expand(text);
            if (!names || static_cast<int>(instance_.vertices.size() + names->size()) > most_vertices) {
                section_.reader().error(
                    key,
                    "\"" + text + "\" in topology." + key + " is no name or range of names that fits a node",
                    "write \"pcie0\" or \"pcie0..3\"; a node has at most " + in_words(most_vertices) +
                        " vertices");
                continue;
            }
            for (std::string& name : *names) {
                if (find(name) >= 0)
                    section_.reader().error(key, "vertex \"" + name + "\" is defined twice",
                                            "give every vertex a name of its own");
                else add_vertex(instance_, std::move(name), kind);
            }
        }
    }

    int find(const std::string& name) const {
        for (const std::int32_t v : core::indices(instance_.vertices))
            if (instance_.vertices[v].name == name) return v;
        return -1;
    }

    const LinkSpec* spec_named(core::TableReader& reader) {
        std::string name = reader.required_string("link");
        for (const LinkSpec& spec : specs_)
            if (spec.name == name) return &spec;
        if (name.empty()) return nullptr;
        std::vector<std::string> known;
        for (const LinkSpec& spec : specs_) known.push_back(spec.name);
        std::string near = core::did_you_mean(name, known);
        reader.error("link", "there is no kind of link \"" + name + "\"",
                     !near.empty()   ? "did you mean " + core::in_quotes(near) + "?"
                     : known.empty() ? "define it: [topology.link." + name + "]"
                                     : "known here: " + core::list_in_words(known) +
                                           "; or define [topology.link." + name + "]");
        return nullptr;
    }

    bool may_add_link(core::TableReader& reader) {
        if (core::count_of(instance_.links) < most_links) return true;
        if (!is_full_)
            reader.error("", "the topology has more than " + in_words(most_links) + " links",
                         "describe one node only");
        is_full_ = true;
        return false;
    }

    // counts[i][j]: links between devices i and j.
    void read_mesh(const core::Value& table) {
        core::TableReader reader(table, "topology.mesh", context_.diagnostics);
        const LinkSpec* spec = spec_named(reader);
        const core::Value* counts = reader.required_array("counts");
        reader.finish();
        if (!counts) return;
        const std::size_t n = instance_.devices;
        const std::string shape = "give " + std::to_string(n) + " rows of " + std::to_string(n) +
                                  " link counts, one row a device, zero on the diagonal, equal both ways";
        std::vector<std::vector<int>> matrix;
        for (const core::Value& row : counts->items()) {
            std::vector<int> line;
            if (row.is_array())
                for (const core::Value& cell : row.items())
                    if (cell.kind() == core::Value::Kind::integer && cell.integer() >= 0 &&
                        cell.integer() <= 64)
                        line.push_back(static_cast<int>(cell.integer()));
            if (line.size() != n || row.size() != n || matrix.size() == n) {
                context_.diagnostics.error(row.location, "topology.mesh.counts",
                                           "row " + std::to_string(matrix.size()) +
                                               " of the mesh does not match " + std::to_string(n) +
                                               " devices",
                                           shape);
                return;
            }
            matrix.push_back(std::move(line));
        }
        bool is_symmetric = matrix.size() == n;
        for (std::size_t i = 0; i < matrix.size() && is_symmetric; ++i)
            for (std::size_t j = 0; j <= i && is_symmetric; ++j)
                is_symmetric = matrix[i][j] == matrix[j][i] && (i != j || matrix[i][i] == 0);
        if (!is_symmetric) {
            reader.error("counts", "the mesh is not a symmetric matrix of " + std::to_string(n) + " rows",
                         shape);
            return;
        }
        if (!spec) return;
        for (std::size_t i = 0; i < n; ++i)
            for (std::size_t j = i + 1; j < n; ++j)
                if (matrix[i][j] > 0 && may_add_link(reader))
                    add_link(instance_, static_cast<int>(i), static_cast<int>(j), *spec, matrix[i][j]);
    }

    // Vertex indices of "gpu0", "gpu0..3", "devices" or a list of such.
    std::vector<int> read_ends(core::TableReader& reader, const std::string& key) {
        std::vector<std::string> texts;
        const core::Value* value = reader.optional_any(key);
        if (!value) {
            reader.required_string(key);
        } else if (value->is_array()) {
            texts = reader.optional_strings(key).value_or(std::vector<std::string>{});
        } else {
            texts.push_back(reader.required_string(key));
        }
        std::vector<int> ends;
        for (const std::string& text : texts) {
            if (text == "devices") {
                for (int i = 0; i < instance_.devices; ++i) ends.push_back(i);
                continue;
            }
            std::optional<std::vector<std::string>> names = expand(text);
            if (!names)
                reader.error(key, "\"" + text + "\" is no name or range of names",
                             "write \"gpu0\", \"gpu0..3\" or \"devices\"");
            else
                for (const std::string& name : *names) {
                    int vertex = find(name);
                    if (vertex >= 0) ends.push_back(vertex);
                    else unknown_vertex(reader, key, name);
                }
            if (core::count_of(ends) > most_links) return {};
        }
        return ends;
    }

    void unknown_vertex(core::TableReader& reader, const std::string& key, const std::string& name) {
        if (++unknown_vertices_ > 20) return;
        std::vector<std::string> known;
        for (const Vertex& vertex : instance_.vertices) known.push_back(vertex.name);
        std::string near = core::did_you_mean(name, known);
        reader.error(key, "there is no vertex \"" + name + "\"",
                     near.empty()
                         ? "name it in topology.hosts, nvswitches, pcie_switches or nics; devices are \"" +
                               known.front() + "\" and so on"
                         : "did you mean " + core::in_quotes(near) + "?");
    }

    void read_connection(const core::Value& table, const std::string& path) {
        core::TableReader reader(table, path, context_.diagnostics);
        const LinkSpec* spec = spec_named(reader);
        std::vector<int> from = read_ends(reader, "from"), to = read_ends(reader, "to");
        int count = core::narrow<int>(reader.integer("count", 1, {.least = 1, .greatest = 64}));
        reader.finish();
        if (!spec || from.empty() || to.empty()) return;
        if (to.size() != 1 && to.size() != from.size()) {
            reader.error(
                "to",
                std::to_string(from.size()) + " ends on one side and " + std::to_string(to.size()) +
                    " on the other",
                "name one vertex that all of `from` join, or as many as `from` has, joined in order");
            return;
        }
        for (std::size_t i = 0; i < from.size(); ++i) {
            int other = to.size() == 1 ? to[0] : to[i];
            if (from[i] == other) {
                reader.error("to", "a link joins \"" + instance_.vertices[other].name + "\" to itself",
                             "join two different vertices");
                return;
            }
            if (!may_add_link(reader)) return;
            add_link(instance_, from[i], other, *spec, count);
        }
    }

    void add_network() {
        int nics = static_cast<int>(std::count_if(instance_.vertices.begin(), instance_.vertices.end(),
                                                  [](const Vertex& v) { return v.kind == VertexKind::nic; }));
        if (nics == 0 && cards_ == 0) return;
        if (nics == 0 || cards_ % nics != 0 || cards_ == 0) {
            section_.reader().error("nics",
                                    std::to_string(cards_) +
                                        " network cards (network.cards) cannot be dealt out over " +
                                        std::to_string(nics) + " nic vertices",
                                    "give topology.nics as many names as cards, or a divisor of it where "
                                    "several cards serve one switch");
            return;
        }
        if (find("fabric") >= 0) {
            section_.reader().error("hosts", "the vertex name \"fabric\" is taken by the network",
                                    "call it something else");
            return;
        }
        add_fabric(instance_, cards_);
    }

    void check_connected() {
        assign_numa(instance_);
        std::string reason;
        if (!prepare_routes(instance_, &reason))
            section_.reader().error("connect", "the topology does not join its devices: " + reason,
                                    "add the missing links to topology.connect");
    }

    InstanceType& instance_;
    int cards_;
    ProfileContext& context_;
    ProfileSection section_;
    std::vector<LinkSpec> specs_;
    bool is_full_ = false;
    int unknown_vertices_ = 0;
};

}  // namespace

void read_topology(const core::Value& table, InstanceType& instance, int cards, ProfileContext& context) {
    if (!table.is_table()) {
        ProfileSection(table, "topology", context);
        return;
    }
    TopologyReader(table, instance, cards, context).read();
}

}  // namespace cluster
