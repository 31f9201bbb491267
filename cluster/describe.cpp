#include "cluster/describe.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "cluster/build_topology.h"
#include "cluster/node.h"
#include "core/diagnostics.h"
#include "core/display/text_table.h"
#include "core/index/integers.h"

namespace cluster {

namespace {

const core::DataType data_types[] = {core::DataType::fp32, core::DataType::tf32, core::DataType::fp16,
                                     core::DataType::bf16, core::DataType::fp8};

std::string gigabits(core::BytesPerSecond rate) { return fmt::format("{:g} Gbps", rate.value * 8 / 1e9); }

bool is_one_of_many(const InstanceType& instance) { return instance.devices > 1; }

// "NVSwitch 600 GB/s", "NVLink 200-250 GB/s", "PCIe 12.3 GB/s", "memory 4 GB/s": what joins the devices of a
// node.
std::string inside(const InstanceType& instance) {
    if (!is_one_of_many(instance)) return "one device";
    double least = HUGE_VAL, most = 0;
    for (int device = 0; device < instance.devices; ++device) {
        double sum = core::to_gigabytes_per_second(nvlink_bandwidth_both_directions(instance, device));
        least = std::min(least, sum);
        most = std::max(most, sum);
    }
    if (most > 0) {
        bool has_switch = std::any_of(instance.vertices.begin(), instance.vertices.end(),
                                      [](const Vertex& v) { return v.kind == VertexKind::nvswitch; });
        return (has_switch ? "NVSwitch " : "NVLink ") +
               (least == most ? fmt::format("{:g} GB/s", most) : fmt::format("{:g}-{:g} GB/s", least, most));
    }
    Cluster one{instance, 1, {}};
    Route first = route(one, DeviceId(0), DeviceId(1));
    LinkKind kind = instance.links[first.links.front().link].kind;
    return (kind == LinkKind::memory ? "memory " : "PCIe ") + core::format(first.bandwidth);
}

std::string network(const InstanceType& instance) {
    if (!has_network(instance)) return "none";
    std::string text = gigabits(instance.network_bandwidth);
    if (instance.network_baseline != instance.network_bandwidth)
        text = fmt::format("{:g}-", instance.network_baseline.value * 8 / 1e9) + text;
    return text + " " + instance.network_name;
}

std::string half_precision(const DeviceSpec& device) {
    for (core::DataType type : {core::DataType::bf16, core::DataType::fp16, core::DataType::fp32})
        if (auto found = device.peak.find(type); found != device.peak.end())
            return fmt::format("{} {}", core::format(found->second), core::name_of(type));
    return "unknown";
}

std::string on_demand(const InstanceType& instance) {
    std::optional<core::DollarsPerSecond> rate = find_price(instance, "on-demand");
    return rate ? fmt::format("{:.3f}", core::to_dollars_per_hour(*rate)) : "unknown";
}

std::string table_text(const std::vector<std::vector<std::string>>& rows) {
    std::vector<std::size_t> widths;
    for (const auto& row : rows)
        for (std::size_t i = 0; i < row.size(); ++i) {
            if (widths.size() <= i) widths.push_back(0);
            widths[i] = std::max(widths[i], row[i].size());
        }
    std::string text;
    for (const auto& row : rows) {
        std::string line;
        for (std::size_t i = 0; i < row.size(); ++i) line += fmt::format("{:<{}}", row[i], widths[i] + 2);
        line.erase(line.find_last_not_of(' ') + 1);
        text += line + "\n";
    }
    return text;
}

// A figure under its dotted path, as text and as plain number in the unit that the key of the JSON document
// names.
struct Figure {
    std::string path, text;
    std::string key;
    core::Value number;
};

class FigureList {
public:
    std::vector<Figure> figures;

    void add(std::string path, std::string text, std::string key, core::Value number) {
        figures.push_back({std::move(path), std::move(text), std::move(key), std::move(number)});
    }
    void bytes(const std::string& path, core::Bytes value) {
        if (value.value > 0) add(path, core::format(value), "gib", core::to_gibibytes(value));
    }
    void rate(const std::string& path, core::BytesPerSecond value) {
        if (value.value > 0)
            add(path, core::format(value), "gigabytes_per_s", core::to_gigabytes_per_second(value));
    }
    void time(const std::string& path, core::Seconds value) {
        add(path, core::format(value), "us", value.value * 1e6);
    }
    void share(const std::string& path, double value) {
        add(path, fmt::format("{:g}", value), "share", value);
    }
    void count(const std::string& path, int value) {
        if (value > 0) add(path, std::to_string(value), "count", value);
    }
};

std::vector<Figure> figures_of(const InstanceType& instance) {
    FigureList list;
    const DeviceSpec& device = instance.device;
    list.count("instance.devices", instance.devices);
    list.count("instance.virtual_cpus", instance.virtual_cpus);
    list.bytes("instance.host_memory", instance.host_memory);
    list.rate("instance.host_memory_bandwidth", instance.host_memory_bandwidth);
    list.bytes("device.nominal_memory", device.nominal_memory);
    list.bytes("device.memory", device.memory);
    list.rate("device.memory_bandwidth", device.memory_bandwidth);
    list.share("device.memory_efficiency", device.memory_efficiency);
    list.count("device.multiprocessors", device.multiprocessors);
    list.time("device.kernel_launch", device.kernel_launch);
    list.time("device.host_dispatch", device.host_dispatch);
    list.bytes("device.context_memory", device.context_memory);
    list.bytes("device.first_communicator_memory", device.first_communicator_memory);
    list.bytes("device.further_communicator_memory", device.further_communicator_memory);
    list.share("device.fragmentation", device.fragmentation);
    if (device.clock_share != 1) list.share("device.clock_share", device.clock_share);
    for (core::DataType type : data_types) {
        auto peak = device.peak.find(type);
        if (peak == device.peak.end()) continue;
        const std::string path = "device.precision." + std::string(core::name_of(type));
        list.add(path + ".peak", core::format(peak->second), "teraflops_per_s",
                 core::to_teraflops_per_second(peak->second));
        auto curve = device.matrix_product.find(type);
        if (curve == device.matrix_product.end()) continue;
        list.share(path + ".compute_efficiency", curve->second.compute_efficiency);
        list.share(path + ".memory_efficiency", curve->second.memory_efficiency);
        list.time(path + ".launch", curve->second.launch);
        list.count(path + ".points", core::count_of(curve->second.points));
    }
    list.count("device.measured_operator", core::count_of(device.measured_operators));
    if (has_network(instance)) {
        list.count("network.cards", network_cards(instance));
        list.rate("network.bandwidth", instance.network_bandwidth);
        if (instance.network_baseline != instance.network_bandwidth)
            list.rate("network.baseline", instance.network_baseline);
        list.rate("network.per_flow_limit", instance.per_flow_limit);
        list.time("network.latency", instance.network_latency);
        list.share("network.efficiency", instance.network_efficiency);
        list.add("network.gpudirect", instance.has_gpudirect ? "yes" : "no", "flag", instance.has_gpudirect);
    }
    return std::move(list.figures);
}

struct LinkRow {
    std::string type;
    const Link* link;
    int uses = 0;
};

// One row a kind of link and number of parallel links, in order of appearance.
std::vector<LinkRow> link_rows(const InstanceType& instance) {
    std::vector<LinkRow> rows;
    for (const Link& link : instance.links) {
        auto same = std::find_if(rows.begin(), rows.end(), [&](const LinkRow& row) {
            return row.type == link.type && row.link->count == link.count;
        });
        if (same == rows.end()) rows.push_back({link.type, &link, 1});
        else ++same->uses;
    }
    return rows;
}

// Sources in order of first mention, so that a page of figures names each once.
class SourceList {
public:
    // "[3] measured"; empty when nobody said.
    std::string mark(const Provenance* provenance) {
        if (!provenance || provenance->source.empty()) return "";
        const std::string text =
            provenance->source + (provenance->date.empty() ? "" : " (" + provenance->date + ")");
        auto known = std::find(sources_.begin(), sources_.end(), text);
        const auto number = known - sources_.begin() + 1;
        if (known == sources_.end()) sources_.push_back(text);
        return fmt::format("[{}]{}", number,
                           provenance->confidence.empty() ? "" : " " + provenance->confidence);
    }

    std::string text() const {
        std::string all;
        for (std::size_t i = 0; i < sources_.size(); ++i)
            all += fmt::format("  [{}] {}\n", i + 1, sources_[i]);
        return all;
    }

private:
    std::vector<std::string> sources_;
};

void set_source(core::Value& entry, const Provenance* provenance) {
    entry["source"] = provenance ? provenance->source : std::string();
    entry["date"] = provenance ? provenance->date : std::string();
    entry["confidence"] = provenance ? provenance->confidence : std::string();
}

constexpr int widest_matrix = 16;  // of devices that still fits a page

core::Value summary(const InstanceType& instance) {
    core::Value entry = core::Value::table();
    entry["name"] = instance.name;
    entry["device"] = instance.device.name;
    entry["devices"] = instance.devices;
    entry["memory_gib"] = core::to_gibibytes(instance.device.memory);
    entry["nominal_memory_gib"] = instance.device.nominal_memory.value > 0
                                      ? core::Value(core::to_gibibytes(instance.device.nominal_memory))
                                      : core::Value();
    entry["inside"] = inside(instance);
    entry["network_gbps"] = instance.network_bandwidth.value * 8 / 1e9;
    entry["network_baseline_gbps"] = instance.network_baseline.value * 8 / 1e9;
    entry["network_name"] = instance.network_name;
    entry["gpudirect"] = instance.has_gpudirect;
    std::optional<core::DollarsPerSecond> rate = find_price(instance, "on-demand");
    entry["usd_per_hour"] = rate ? core::Value(core::to_dollars_per_hour(*rate)) : core::Value();
    return entry;
}

}  // namespace

const Provenance* provenance_of(const InstanceType& instance, std::string path) {
    for (;;) {
        if (auto found = instance.provenance.find(path); found != instance.provenance.end())
            return &found->second;
        std::size_t dot = path.rfind('.');
        if (dot == std::string::npos) return nullptr;
        path.resize(dot);
    }
}

std::string link_section(const InstanceType& instance, const std::string& type) {
    const std::string own = "topology.link." + type;
    return instance.provenance.contains(own) ? own : "device.link." + type;
}

std::string describe_list(const std::vector<InstanceType>& instances, std::size_t width) {
    core::TextTable table({"instance", "devices", "memory", "peak", "inside the node", "network", "USD/h"},
                          0);
    for (const InstanceType& instance : instances)
        table.add({instance.name, fmt::format("{} x {}", instance.devices, instance.device.name),
                   core::format(instance.device.memory), half_precision(instance.device), inside(instance),
                   network(instance), on_demand(instance)});
    return table.text(width) +
           "memory: of one device, as a process may use it; inside: NVLink as vendors count it, both "
           "directions of one device, other links one direction as achieved\n";
}

core::Value list_to_value(const std::vector<InstanceType>& instances) {
    core::Value document = core::Value::table();
    document["instances"] = core::Value::array();
    for (const InstanceType& instance : instances) document["instances"].append(summary(instance));
    return document;
}

std::string describe(const InstanceType& instance) {
    std::string text =
        fmt::format("{}: {} x {}, {} each, {}, network {}, {} USD/h on demand\n", instance.name,
                    instance.devices, instance.device.name, core::format(instance.device.memory),
                    inside(instance), network(instance), on_demand(instance));
    for (const std::string& file : instance.files) text += "  from " + file + "\n";

    SourceList sources;
    std::vector<std::vector<std::string>> rows;
    for (const Figure& figure : figures_of(instance))
        rows.push_back({"  " + figure.path, figure.text, sources.mark(provenance_of(instance, figure.path))});
    text += "\nFigures\n" + table_text(rows);

    core::TextTable links({"kind", "joins", "rate", "achieved", "latency", "source"});
    for (const LinkRow& row : link_rows(instance)) {
        const Link& link = *row.link;
        const auto name = [&](int v) { return std::string(instance.vertices[v].name); };
        const std::string path =
            link.kind == LinkKind::network ? "network" : link_section(instance, row.type);
        links.add({row.type + (link.count > 1 ? fmt::format(" x {}", link.count) : ""),
                   name(link.a) + " - " + name(link.b) + (row.uses > 1 ? fmt::format(" ({})", row.uses) : ""),
                   core::format(link.bandwidth) + (link.is_full_duplex ? "" : " (both together)"),
                   core::format(link.effective()), core::format(link.latency),
                   sources.mark(provenance_of(instance, path))});
    }
    text += "\nLinks: rates of one direction, and how many of a kind there are\n" + links.text();
    for (const char* path : {"topology", "topology.mesh", "topology.connect"})
        if (instance.provenance.contains(path))
            text += std::string("  ") + path + " " + sources.mark(provenance_of(instance, path)) + "\n";

    if (is_one_of_many(instance) && instance.devices <= widest_matrix) {
        Cluster one{instance, 1, {}};
        rows = {{""}};
        for (int to = 0; to < instance.devices; ++to) rows[0].push_back(instance.vertices[to].name);
        for (int from = 0; from < instance.devices; ++from) {
            rows.push_back({"  " + instance.vertices[from].name});
            for (int to = 0; to < instance.devices; ++to)
                rows.back().push_back(
                    from == to
                        ? "-"
                        : fmt::format("{:.1f}", core::to_gigabytes_per_second(
                                                    route(one, DeviceId(from), DeviceId(to)).bandwidth)));
        }
        text += "\nRoutes inside the node, GB/s a direction, each alone\n" + table_text(rows);
    }
    if (network_cards(instance) > 0) {
        Cluster two{instance, 2, {}};
        Route between = route(two, DeviceId(0), DeviceId(instance.devices));
        text +=
            fmt::format("\nBetween nodes: {} alone from device to device, {}{}\n",
                        core::format(between.bandwidth), core::format(between.latency),
                        instance.has_gpudirect ? ", straight from device memory" : ", staged in host memory");
    }
    if (!instance.prices.empty()) {
        rows.clear();
        for (const Price& price : instance.prices) {
            const Provenance origin{price.source, price.date, ""};
            rows.push_back({"  " + price.kind, price.region,
                            fmt::format("{:.4f} USD/h", core::to_dollars_per_hour(price.rate)), price.date,
                            sources.mark(&origin)});
        }
        text += "\nPrices of one node\n" + table_text(rows);
    }
    if (std::string list = sources.text(); !list.empty()) text += "\nSources\n" + list;
    if (!instance.notes.empty()) {
        text += "\nNotes\n";
        for (const std::string& note : instance.notes) text += "  " + note + "\n";
    }
    return text;
}

core::Value describe_to_value(const InstanceType& instance) {
    core::Value document = summary(instance);
    document["files"] = core::Value(instance.files);
    core::Value figures = core::Value::array();
    for (const Figure& figure : figures_of(instance)) {
        core::Value entry = core::Value::table();
        entry["key"] = figure.path;
        entry["unit"] = figure.key;
        entry["value"] = figure.number;
        set_source(entry, provenance_of(instance, figure.path));
        figures.append(std::move(entry));
    }
    document["figures"] = std::move(figures);
    core::Value vertices = core::Value::array();
    for (const Vertex& vertex : instance.vertices) {
        core::Value entry = core::Value::table();
        entry["name"] = vertex.name;
        entry["kind"] = std::string(name_of(vertex.kind));
        entry["numa"] = vertex.numa;
        vertices.append(std::move(entry));
    }
    document["vertices"] = std::move(vertices);
    core::Value links = core::Value::array();
    for (const Link& link : instance.links) {
        core::Value entry = core::Value::table();
        entry["a"] = instance.vertices[link.a].name;
        entry["b"] = instance.vertices[link.b].name;
        entry["kind"] = std::string(name_of(link.kind));
        entry["count"] = link.count;
        entry["gigabytes_per_s"] = core::to_gigabytes_per_second(link.bandwidth);
        entry["efficiency"] = link.efficiency;
        entry["latency_us"] = link.latency.value * 1e6;
        entry["full_duplex"] = link.is_full_duplex;
        set_source(entry, provenance_of(instance, link.kind == LinkKind::network
                                                      ? "network"
                                                      : link_section(instance, link.type)));
        links.append(std::move(entry));
    }
    document["links"] = std::move(links);
    if (instance.devices <= widest_matrix) {
        Cluster one{instance, 1, {}};
        core::Value matrix = core::Value::array();
        for (int from = 0; from < instance.devices; ++from) {
            core::Value row = core::Value::array();
            for (int to = 0; to < instance.devices; ++to)
                row.append(from == to ? core::Value()
                                      : core::Value(core::to_gigabytes_per_second(
                                            route(one, DeviceId(from), DeviceId(to)).bandwidth)));
            matrix.append(std::move(row));
        }
        document["routes_gigabytes_per_s"] = std::move(matrix);
    }
    core::Value prices = core::Value::array();
    for (const Price& price : instance.prices) {
        core::Value entry = core::Value::table();
        entry["kind"] = price.kind;
        entry["region"] = price.region;
        entry["usd_per_hour"] = core::to_dollars_per_hour(price.rate);
        entry["date"] = price.date;
        entry["source"] = price.source;
        prices.append(std::move(entry));
    }
    document["prices"] = std::move(prices);
    document["notes"] = core::Value(instance.notes);
    return document;
}

}  // namespace cluster
