// The [cluster] table: an instance of the catalogue with what-if overrides, or a cluster made to measure.

#include <algorithm>
#include <cmath>

#include "cluster/build_topology.h"
#include "cluster/profile/load.h"
#include "cluster/synthetic.h"
#include "core/csv.h"
#include "core/diagnostics.h"
#include "core/index/integers.h"
#include "core/reader.h"

namespace cluster {

namespace {

std::optional<InstanceType> read_shape(core::TableReader& reader, core::Diagnostics& diagnostics) {
    NodeShape shape;
    const std::size_t before = diagnostics.error_count();
    shape.device = reader.required_string("device");
    shape.devices_per_node = core::narrow<int>(
        reader.required_integer("devices_per_node", {.least = 1, .greatest = most_devices}));
    shape.intra = reader.required_choice("intra", intra_names());
    shape.intra_bandwidth = reader.optional_bytes_per_second("intra_bandwidth");
    shape.pcie_bandwidth = reader.optional_bytes_per_second("pcie_bandwidth");
    for (const char* key : {"intra_bandwidth", "pcie_bandwidth"})
        if (const auto& rate = key[0] == 'i' ? shape.intra_bandwidth : shape.pcie_bandwidth;
            rate && rate->value == 0)
            reader.error(key, std::string("cluster.") + key + " is zero",
                         "give a rate above zero, or leave it out");
    shape.network_cards =
        core::narrow<int>(reader.integer("network_cards", 0, {.least = 1, .greatest = 256}));
    shape.network_bandwidth =
        reader.optional_bytes_per_second("network_bandwidth").value_or(core::BytesPerSecond());
    shape.network_latency = reader.optional_seconds("network_latency");
    shape.network_efficiency = reader.optional_real("network_efficiency", {.least = 1e-6, .greatest = 1});
    shape.transport = reader.optional_choice("transport", transport_names()).value_or(shape.transport);
    shape.has_gpudirect = reader.optional_boolean("gpudirect");
    shape.host_memory = reader.optional_bytes("host_memory").value_or(core::Bytes());
    shape.host_memory_bandwidth =
        reader.optional_bytes_per_second("host_memory_bandwidth").value_or(core::BytesPerSecond());
    if (diagnostics.error_count() != before) return std::nullopt;
    return build_instance(shape, diagnostics, reader.location_of("device"), "cluster");
}

// The first card of a node that had none stands on the first host.
void add_first_card(InstanceType& instance) {
    const bool has_card = std::any_of(instance.vertices.begin(), instance.vertices.end(),
                                      [](const Vertex& v) { return v.kind == VertexKind::nic; });
    if (has_card) return;
    for (const std::int32_t v : core::indices(instance.vertices))
        if (instance.vertices[v].kind == VertexKind::host) {
            LinkSpec slot;
            slot.name = "card-slot";
            slot.bandwidth = instance.network_baseline;
            int nic = add_vertex(instance, "nic0", VertexKind::nic);
            add_link(instance, nic, v, slot);
            return;
        }
}

// What is more than that is no what-if of a machine.
constexpr double least_factor = 1e-6, greatest_factor = 1e6;

// What-if overrides of a node of the catalogue. Each leaves a sentence in `assumptions`.
class Overrides {
public:
    Overrides(core::TableReader& reader, Cluster& cluster)
        : reader_(reader), cluster_(cluster), instance_(cluster.instance) {}

    void apply() {
        bool changes_network = false;
        // Keys given beside it win.
        if (auto transport = reader_.optional_choice("transport", transport_names());
            transport && *transport != instance_.network_name) {
            tell("transport", *transport, instance_.network_name.empty() ? "none" : instance_.network_name);
            use_transport(instance_, *transport);
            changes_network = true;
        }
        join_processes();
        if (auto bandwidth = figure("network_bandwidth", instance_.network_baseline,
                                    &core::TableReader::optional_bytes_per_second);
            bandwidth && is_positive("network_bandwidth", bandwidth->value)) {
            tell("network_bandwidth", core::format(*bandwidth), core::format(instance_.network_baseline));
            instance_.network_bandwidth = instance_.network_baseline = *bandwidth;
            add_first_card(instance_);
            changes_network = true;
        }
        if (auto latency =
                figure("network_latency", instance_.network_latency, &core::TableReader::optional_seconds)) {
            tell("network_latency", core::format(*latency), core::format(instance_.network_latency));
            instance_.network_latency = *latency;
            changes_network = true;
        }
        if (auto efficiency = reader_.optional_real("network_efficiency", {.least = 1e-6, .greatest = 1})) {
            tell("network_efficiency", std::to_string(*efficiency),
                 std::to_string(instance_.network_efficiency));
            instance_.network_efficiency = *efficiency;
            changes_network = true;
        }
        if (auto gpudirect = reader_.optional_boolean("gpudirect")) {
            tell("gpudirect", *gpudirect ? "true" : "false", instance_.has_gpudirect ? "true" : "false");
            instance_.has_gpudirect = *gpudirect;
            changes_network = true;
        }
        if (auto memory = figure("memory", instance_.device.memory, &core::TableReader::optional_bytes);
            memory && is_positive("memory", memory->value)) {
            tell("memory", core::format(*memory), core::format(instance_.device.memory));
            instance_.device.memory = *memory;
            instance_.provenance["device.memory"] = {"the scenario", "", ""};
        }
        change_price();
        if (changes_network) {
            if (instance_.network_name.empty() || instance_.network_name == "shared-memory")
                instance_.network_name = "what-if";
            instance_.provenance["network"] = {"the scenario", "", ""};
            add_fabric(instance_, std::max({1, network_cards(instance_), nic_count()}));
            assign_numa(instance_);
            std::string reason;
            if (!prepare_routes(instance_, &reason))
                reader_.error("network_bandwidth", "no network can be added: " + reason,
                              "describe the node with device, devices_per_node and intra");
            else tell_what_holds_back();
        }
    }

private:
    int nic_count() const {
        return static_cast<int>(std::count_if(instance_.vertices.begin(), instance_.vertices.end(),
                                              [](const Vertex& v) { return v.kind == VertexKind::nic; }));
    }

    void change_price() {
        const std::optional<core::DollarsPerSecond> known = find_price(instance_, "on-demand");
        if (auto price = price_per_hour(known)) {
            tell("price", std::to_string(*price) + " USD/h",
                 known ? std::to_string(core::to_dollars_per_hour(*known)) + " USD/h" : "unknown");
            std::erase_if(instance_.prices, [](const Price& other) { return other.kind == "on-demand"; });
            instance_.prices.insert(instance_.prices.begin(),
                                    {"on-demand", "", core::dollars_per_hour(*price), "", "the scenario"});
        }
    }

    // Ranks of a node as threads or as processes: what `smexec profile` measured between them.
    void join_processes() {
        const auto transport = reader_.optional_choice("process_transport", {"threads", "tcp", "mpi"});
        if (!transport) return;
        const auto found = instance_.transports.find(*transport);
        if (found == instance_.transports.end()) {
            std::vector<std::string> known;
            for (const auto& [name, rate] : instance_.transports) known.push_back(name);
            reader_.error("process_transport",
                          "the profile of " + instance_.name +
                              " does not say what passes between ranks joined by " + *transport,
                          known.empty()
                              ? "measure it: smexec profile --out FILE, then cluster.instance = \"FILE\""
                              : "it has " + core::list_in_words(known));
            return;
        }
        set_memory_links(instance_, found->second);
        cluster_.assumptions.push_back("ranks of a node are joined by " + *transport + ": " +
                                       core::format(found->second.bandwidth) + ", " +
                                       core::format(found->second.latency));
    }

    // "2x", "0.5x": the number; nothing of any other value.
    std::optional<double> factor(const char* key) {
        if (!reader_.has(key)) return std::nullopt;
        const core::Value* value = reader_.optional_any(key);
        if (!value->is_string() || !value->string().ends_with('x')) return std::nullopt;
        return core::parse_real(value->string().substr(0, value->string().size() - 1));
    }

    // As given, or so many times the profile's. Zero is none: a factor of it is an error.
    template <class Quantity>
    std::optional<Quantity> figure(const char* key, Quantity profiles,
                                   std::optional<Quantity> (core::TableReader::*read)(std::string_view)) {
        const std::optional<double> times = factor(key);
        if (!times) return (reader_.*read)(key);
        if (profiles.value > 0 && is_factor(*times)) return Quantity(profiles * *times);
        refuse_factor(key, profiles.value > 0);
        return std::nullopt;
    }

    // USD
    std::optional<double> price_per_hour(std::optional<core::DollarsPerSecond> known) {
        constexpr core::RealRange range{.least = 0, .greatest = 1e6};
        const std::optional<double> times = factor("price");
        if (!times) return reader_.optional_real("price", range);
        if (known && is_factor(*times)) return core::to_dollars_per_hour(*known) * *times;
        refuse_factor("price", known.has_value());
        return std::nullopt;
    }

    static bool is_factor(double times) { return times >= least_factor && times <= greatest_factor; }

    void refuse_factor(const std::string& key, bool has_figure) {
        const std::string given =
            "cluster." + key + " = " + core::in_quotes(reader_.optional_any(key)->string());
        if (has_figure)
            reader_.error(key, given + " is no factor from 1e-6 to 1e6",
                          "for example \"2x\" or \"0.5x\", of the profile's figure");
        else
            reader_.error(key, given + ": " + instance_.name + " has no such figure to multiply",
                          "give the figure itself");
    }

    bool is_positive(const std::string& key, double value) {
        if (value > 0) return true;
        reader_.error(key, "cluster." + key + " is zero",
                      "give a figure above zero, or leave it out to keep the profile's");
        return false;
    }

    void tell(const std::string& key, const std::string& now, const std::string& before) {
        cluster_.assumptions.push_back(key + " = " + now + " instead of " + before);
    }

    // A faster card behind the same PCIe link is no faster: say so rather than let the what-if mislead.
    void tell_what_holds_back() {
        Cluster two = cluster_;
        two.nodes = 2;
        if (instance_.network_baseline.value <= 0) return;
        Route between = route(two, DeviceId(0), DeviceId(instance_.devices));
        const Link& narrowest = instance_.links[between.bottleneck.link];
        if (narrowest.kind != LinkKind::network)
            cluster_.assumptions.push_back("between nodes one device is held to " +
                                           core::format(between.bandwidth) + " by the link " +
                                           instance_.vertices[narrowest.a].name + " - " +
                                           instance_.vertices[narrowest.b].name + ", not by the network");
    }

    core::TableReader& reader_;
    Cluster& cluster_;
    InstanceType& instance_;
};

}  // namespace

std::optional<Cluster> load_cluster(const core::Value& table, core::Diagnostics& diagnostics,
                                    const std::string& directory) {
    const std::size_t before = diagnostics.error_count();
    core::TableReader reader(table, "cluster", diagnostics);
    if (!table.is_table()) return std::nullopt;
    Cluster cluster;
    cluster.nodes = core::narrow<int>(reader.integer("nodes", 1, {.least = 1, .greatest = most_nodes}));
    std::optional<InstanceType> instance;
    const bool is_made_to_measure = !reader.has("instance") && reader.has("device");
    if (is_made_to_measure) {
        instance = read_shape(reader, diagnostics);
        // These were read as part of the shape; they are no overrides.
        core::Value rest = core::Value::table();
        for (const char* key : {"memory", "price"})
            if (const core::Value* value = table.find(key)) rest[key] = *value;
        for (const char* key : {"memory", "price"}) reader.ignore(key);
        if (instance) {
            cluster.instance = std::move(*instance);
            core::TableReader overrides(rest, "cluster", diagnostics);
            Overrides(overrides, cluster).apply();
        }
    } else {
        if (std::string name = reader.required_string("instance"); !name.empty())
            instance = load_instance(name, diagnostics, reader.location_of("instance"), "cluster.instance",
                                     directory);
        else if (const core::Value* given = table.find("instance"); given && given->is_string())
            reader.error("instance", "cluster.instance is empty",
                         "name an instance type, for example \"p4d.24xlarge\"");
        if (instance) cluster.instance = std::move(*instance);
        if (instance) Overrides(reader, cluster).apply();
        else
            for (const char* key : {"transport", "process_transport", "network_bandwidth", "network_latency",
                                    "network_efficiency", "gpudirect", "memory", "price"})
                reader.ignore(key);
    }
    reader.finish();
    if (diagnostics.error_count() != before) return std::nullopt;
    core::require(instance.has_value(), "a cluster without errors has an instance");
    cluster.table = table;
    if (cluster.nodes > 1 && network_cards(cluster.instance) == 0) {
        reader.error("nodes",
                     "cluster.nodes = " + std::to_string(cluster.nodes) + ", but " + cluster.instance.name +
                         " has no network",
                     "use one node, or give network_bandwidth and network_latency");
        return std::nullopt;
    }
    return cluster;
}

}  // namespace cluster
