// An instance as a profile. Quantities are written in the shortest text that reads back to the very same
// number.

#include "cluster/profile/write.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>

#include "cluster/build_topology.h"
#include "cluster/node.h"
#include "cluster/profile/profile_reader.h"
#include "core/document.h"
#include "core/errors.h"
#include "core/index/integers.h"

namespace cluster {

namespace {

std::string digits_of(double number) {
    char text[64];
    const auto [end, failure] = std::to_chars(text, text + sizeof text, number);
    core::require(failure == std::errc(), "a real number fits in 64 characters");
    return std::string(text, end);
}

struct WrittenUnit {
    const char* name;
    double scale;
};

template <class Quantity, std::size_t count>
std::string exact_text(Quantity quantity, const WrittenUnit (&units)[count],
                       std::optional<Quantity> (*parse)(std::string_view)) {
    std::string best;
    for (const WrittenUnit& unit : units) {
        std::string text = digits_of(quantity.value / unit.scale) + unit.name;
        std::optional<Quantity> read = parse(text);
        if (read && read->value == quantity.value && (best.empty() || text.size() < best.size())) best = text;
    }
    core::require(!best.empty(), "a quantity in its base unit reads back to itself");
    return best;
}

std::string text(core::Bytes quantity) {
    static constexpr WrittenUnit units[] = {
        {"GiB", 1073741824.0}, {"MiB", 1048576.0}, {"GB", 1e9}, {"KiB", 1024.0}, {"B", 1}};
    return exact_text(quantity, units, core::parse_bytes);
}

std::string text(core::Seconds quantity) {
    static constexpr WrittenUnit units[] = {{"us", 1e-6}, {"ms", 1e-3}, {"ns", 1e-9}, {"s", 1}};
    return exact_text(quantity, units, core::parse_seconds);
}

std::string text(core::BytesPerSecond quantity) {
    static constexpr WrittenUnit units[] = {{"GB/s", 1e9}, {"Gbps", 1.25e8}, {"MB/s", 1e6}, {"B/s", 1}};
    return exact_text(quantity, units, core::parse_bytes_per_second);
}

std::string text(core::FlopsPerSecond quantity) {
    static constexpr WrittenUnit units[] = {{"TFLOP/s", 1e12}, {"GFLOP/s", 1e9}, {"FLOP/s", 1}};
    return exact_text(quantity, units, core::parse_flops_per_second);
}

// x / 3600 is not undone exactly by x * 3600; the number that was read is one of its neighbours.
double usd_per_hour(core::DollarsPerSecond rate) {
    double near = core::to_dollars_per_hour(rate);
    const std::string six = digits_of(std::round(near * 1e6) / 1e6);
    double rounded = 0;
    std::from_chars(six.data(), six.data() + six.size(), rounded);
    for (double candidate : {rounded, near, std::nextafter(near, 0.0), std::nextafter(near, HUGE_VAL)})
        if (core::dollars_per_hour(candidate) == rate) return candidate;
    return near;
}

void set_provenance(core::Value& table, const std::string& prefix, const Provenance& provenance) {
    if (!provenance.source.empty()) table[prefix + "source"] = provenance.source;
    if (!provenance.date.empty()) table[prefix + "date"] = provenance.date;
    if (!provenance.confidence.empty()) table[prefix + "confidence"] = provenance.confidence;
}

class ProfileWriter {
public:
    explicit ProfileWriter(const InstanceType& instance) : instance_(instance) {}

    core::Value write() {
        core::Value document = core::Value::table();
        document["schema"] = profile_schema;
        document["name"] = instance_.name;
        if (!instance_.provider.empty()) document["provider"] = instance_.provider;
        if (std::vector<std::string> notes = own_notes(); !notes.empty())
            document["notes"] = core::Value(notes);
        document["instance"] = instance_section();
        document["device"] = device_section();
        if (!instance_.network_name.empty() || has_network(instance_))
            document["network"] = network_section();
        if (!instance_.transports.empty()) document["transport"] = transport_section();
        document["topology"] = topology_section();
        if (!instance_.prices.empty()) document["price"] = prices();
        return document;
    }

private:
    // Reading the profile makes the notes of assumed figures again.
    std::vector<std::string> own_notes() const {
        std::vector<std::string> notes = instance_.notes;
        for (const std::string& generated : notes_of_assumptions(instance_.provenance))
            if (auto at = std::find(notes.begin(), notes.end(), generated); at != notes.end())
                notes.erase(at);
        return notes;
    }

    bool has_provenance(const std::string& path) const { return instance_.provenance.contains(path); }

    // Optional figures are written when they are not zero or when the profile says where the zero comes
    // from.
    template <class Quantity>
    void set_if_known(core::Value& table, const std::string& path, const std::string& key,
                      Quantity quantity) const {
        if (quantity.value != 0 || has_provenance(path + "." + key)) table[key] = text(quantity);
    }

    // Sources of a section and of the single figures in it.
    void set_sources(core::Value& table, const std::string& path) const {
        std::vector<std::string> keys;
        for (const auto& [key, value] : table.members()) keys.push_back(key);
        if (auto own = instance_.provenance.find(path); own != instance_.provenance.end())
            set_provenance(table, "", own->second);
        for (const std::string& key : keys)
            if (auto own = instance_.provenance.find(path + "." + key);
                own != instance_.provenance.end() && !table.find(key)->is_table())
                set_provenance(table, key + "_", own->second);
    }

    core::Value instance_section() const {
        core::Value table = core::Value::table();
        table["devices"] = instance_.devices;
        set_if_known(table, "instance", "host_memory", instance_.host_memory);
        set_if_known(table, "instance", "host_memory_bandwidth", instance_.host_memory_bandwidth);
        if (instance_.virtual_cpus > 0 || has_provenance("instance.virtual_cpus"))
            table["virtual_cpus"] = instance_.virtual_cpus;
        set_sources(table, "instance");
        return table;
    }

    core::Value link_table(const LinkSpec& spec, const std::string& path) const {
        core::Value table = core::Value::table();
        table["kind"] = std::string(name_of(spec.kind));
        table["bandwidth"] = text(spec.bandwidth);
        if (spec.count != 1) table["count"] = spec.count;
        table["efficiency"] = spec.efficiency;
        set_if_known(table, path, "latency", spec.latency);
        if (!spec.is_full_duplex) table["full_duplex"] = false;
        set_sources(table, path);
        return table;
    }

    core::Value precision_table(core::DataType type, core::FlopsPerSecond peak) const {
        const std::string path = "device.precision." + std::string(core::name_of(type));
        core::Value table = core::Value::table();
        table["peak"] = text(peak);
        if (auto found = instance_.device.matrix_product.find(type);
            found != instance_.device.matrix_product.end()) {
            const MatrixProductCurve& curve = found->second;
            table["compute_efficiency"] = curve.compute_efficiency;
            table["memory_efficiency"] = curve.memory_efficiency;
            table["launch"] = text(curve.launch);
            if (!curve.points.empty()) {
                core::Value points = core::Value::array();
                for (const MatrixProductCurve::Point& point : curve.points)
                    points.append(core::Value::Array{point.flops.value, point.rate.value});
                table["points"] = std::move(points);
            }
        }
        set_sources(table, path);
        return table;
    }

    core::Value device_section() const {
        const DeviceSpec& device = instance_.device;
        core::Value table = core::Value::table();
        table["name"] = device.name;
        if (!device.architecture.empty()) table["architecture"] = device.architecture;
        set_if_known(table, "device", "nominal_memory", device.nominal_memory);
        table["memory"] = text(device.memory);
        table["memory_bandwidth"] = text(device.memory_bandwidth);
        table["memory_efficiency"] = device.memory_efficiency;
        set_if_known(table, "device", "kernel_launch", device.kernel_launch);
        set_if_known(table, "device", "host_dispatch", device.host_dispatch);
        set_if_known(table, "device", "context_memory", device.context_memory);
        set_if_known(table, "device", "first_communicator_memory", device.first_communicator_memory);
        set_if_known(table, "device", "further_communicator_memory", device.further_communicator_memory);
        if (device.fragmentation != 0 || has_provenance("device.fragmentation"))
            table["fragmentation"] = device.fragmentation;
        if (device.clock_share != 1 || has_provenance("device.clock_share"))
            table["clock_share"] = device.clock_share;
        if (device.multiprocessors != 0 || has_provenance("device.multiprocessors"))
            table["multiprocessors"] = device.multiprocessors;
        if (!device.has_concurrent_streams) table["concurrent_streams"] = false;
        if (device.has_gpudirect || has_provenance("device.gpudirect"))
            table["gpudirect"] = device.has_gpudirect;
        if (!device.measured_operators.empty()) {
            core::Value operators = core::Value::array();
            for (const MeasuredOperator& measured : device.measured_operators) {
                core::Value entry = core::Value::table();
                entry["signature"] = measured.signature;
                entry["forward"] = text(measured.forward);
                if (measured.backward_input.value != 0)
                    entry["backward_input"] = text(measured.backward_input);
                if (measured.backward_weight.value != 0)
                    entry["backward_weight"] = text(measured.backward_weight);
                operators.append(std::move(entry));
            }
            table["measured_operator"] = std::move(operators);
        }
        set_sources(table, "device");
        core::Value precisions = core::Value::table();
        for (const auto& [type, peak] : device.peak)
            precisions[core::name_of(type)] = precision_table(type, peak);
        table["precision"] = std::move(precisions);
        if (!device.links.empty()) {
            core::Value links = core::Value::table();
            for (const LinkSpec& spec : device.links)
                links[spec.name] = link_table(spec, "device.link." + spec.name);
            table["link"] = std::move(links);
        }
        return table;
    }

    core::Value network_section() const {
        core::Value table = core::Value::table();
        table["name"] = instance_.network_name.empty() ? std::string("network") : instance_.network_name;
        if (has_network(instance_)) {
            table["cards"] = std::max(1, network_cards(instance_));
            table["bandwidth"] = text(instance_.network_bandwidth);
            if (instance_.network_baseline != instance_.network_bandwidth)
                table["baseline"] = text(instance_.network_baseline);
            set_if_known(table, "network", "per_flow_limit", instance_.per_flow_limit);
            table["latency"] = text(instance_.network_latency);
            table["efficiency"] = instance_.network_efficiency;
            table["gpudirect"] = instance_.has_gpudirect;
        }
        set_sources(table, "network");
        return table;
    }

    core::Value transport_section() const {
        core::Value table = core::Value::table();
        for (const auto& [name, rate] : instance_.transports) {
            core::Value one = core::Value::table();
            one["bandwidth"] = text(rate.bandwidth);
            one["latency"] = text(rate.latency);
            set_sources(one, "transport." + name);
            table[name] = std::move(one);
        }
        return table;
    }

    std::string vertex_name(int vertex) const { return instance_.vertices[vertex].name; }

    std::string device_prefix() const {
        core::require(instance_.devices > 0 && core::count_of(instance_.vertices) >= instance_.devices,
                      "an instance has a vertex for every device");
        std::string prefix = vertex_name(0);
        core::require(prefix.ends_with('0'), "devices are numbered from 0");
        prefix.pop_back();
        for (int i = 0; i < instance_.devices; ++i)
            core::require(vertex_name(i) == prefix + std::to_string(i), "devices are numbered from 0");
        return prefix;
    }

    // The kind of link a link is made of: its total rate over its count, where that multiplies back exactly.
    static LinkSpec spec_of(const Link& link) {
        LinkSpec spec;
        spec.name = link.type.empty() ? std::string(name_of(link.kind)) : link.type;
        spec.kind = link.kind;
        spec.efficiency = link.efficiency;
        spec.latency = link.latency;
        spec.is_full_duplex = link.is_full_duplex;
        const double share = link.bandwidth.value / link.count;
        for (double candidate : {share, std::nextafter(share, 0.0), std::nextafter(share, HUGE_VAL)})
            if (candidate * link.count == link.bandwidth.value)
                spec.bandwidth = core::BytesPerSecond(candidate);
        core::require(spec.bandwidth.value > 0, "parallel links share their rate equally");
        return spec;
    }

    static bool have_same_figures(const LinkSpec& a, const LinkSpec& b) {
        return a.kind == b.kind && a.bandwidth == b.bandwidth && a.efficiency == b.efficiency &&
               a.latency == b.latency && a.is_full_duplex == b.is_full_duplex;
    }

    // The name under which a link's figures stand in the text; figures that the device does not state are
    // added to `specs`.
    std::string type_of(const Link& link, std::vector<LinkSpec>& specs) const {
        LinkSpec spec = spec_of(link);
        const std::string name = spec.name;
        for (int suffix = 1;; ++suffix) {
            spec.name = suffix == 1 ? name : name + "-" + std::to_string(suffix);
            const auto is_namesake = [&](const LinkSpec& other) { return other.name == spec.name; };
            if (auto own = std::find_if(specs.begin(), specs.end(), is_namesake); own != specs.end()) {
                if (have_same_figures(*own, spec)) return spec.name;
                continue;
            }
            const auto& offered = instance_.device.links;
            auto from_device = std::find_if(offered.begin(), offered.end(), is_namesake);
            if (from_device == offered.end() || !have_same_figures(*from_device, spec)) specs.push_back(spec);
            else if (std::any_of(specs.begin(), specs.end(), is_namesake)) continue;
            return spec.name;
        }
    }

    core::Value topology_section() const {
        core::Value table = core::Value::table();
        if (std::string prefix = device_prefix(); prefix != "gpu") table["device_name"] = prefix;
        const std::pair<const char*, VertexKind> lists[] = {{"hosts", VertexKind::host},
                                                            {"nvswitches", VertexKind::nvswitch},
                                                            {"pcie_switches", VertexKind::pcie_switch},
                                                            {"nics", VertexKind::nic}};
        for (const auto& [key, kind] : lists) {
            std::vector<std::string> names;
            for (const Vertex& vertex : instance_.vertices)
                if (vertex.kind == kind) names.push_back(vertex.name);
            if (!names.empty()) table[key] = core::Value(names);
        }
        std::vector<LinkSpec> specs;
        std::size_t next = 0;
        core::Value mesh = mesh_table(next, specs);
        core::Value connect = core::Value::array();
        for (; next < instance_.links.size(); ++next) {
            const Link& link = instance_.links[next];
            if (link.kind == LinkKind::network) continue;  // follows from [network]
            core::Value entry = core::Value::table();
            entry["link"] = type_of(link, specs);
            entry["from"] = vertex_name(link.a);
            entry["to"] = vertex_name(link.b);
            if (link.count != 1) entry["count"] = link.count;
            connect.append(std::move(entry));
        }
        if (mesh.size() > 0) table["mesh"] = core::Value();  // its place for the sources, filled below
        if (connect.size() > 0) table["connect"] = std::move(connect);
        set_sources(table, "topology");
        if (mesh.size() > 0) table["mesh"] = std::move(mesh);
        if (!specs.empty()) {
            core::Value links = core::Value::table();
            for (const LinkSpec& spec : specs)
                links[spec.name] = link_table(spec, "topology.link." + spec.name);
            table["link"] = std::move(links);
        }
        return table;
    }

    // The leading links that join devices directly, row by row, as a matrix; `next` is the first link that is
    // not among them.
    core::Value mesh_table(std::size_t& next, std::vector<LinkSpec>& specs) const {
        const std::size_t n = instance_.devices;
        std::vector<std::vector<std::int64_t>> counts(n, std::vector<std::int64_t>(n, 0));
        std::string type;
        std::pair<int, int> last{-1, -1};
        for (; next < instance_.links.size(); ++next) {
            const Link& link = instance_.links[next];
            const std::pair<int, int> pair{link.a, link.b};
            if (link.a >= link.b || link.b >= instance_.devices || pair <= last) break;
            std::string own = type_of(link, specs);
            if (!type.empty() && own != type) break;
            type = own;
            last = pair;
            counts[link.a][link.b] = link.count;
            counts[link.b][link.a] = link.count;
        }
        if (type.empty()) return core::Value::table();
        core::Value table = core::Value::table();
        table["link"] = type;
        core::Value rows = core::Value::array();
        for (const std::vector<std::int64_t>& row : counts) rows.append(core::Value(row));
        table["counts"] = std::move(rows);
        return table;
    }

    core::Value prices() const {
        core::Value array = core::Value::array();
        for (const Price& price : instance_.prices) {
            core::Value entry = core::Value::table();
            entry["kind"] = price.kind;
            if (!price.region.empty()) entry["region"] = price.region;
            entry["usd_per_hour"] = usd_per_hour(price.rate);
            if (!price.date.empty()) entry["date"] = price.date;
            if (!price.source.empty()) entry["source"] = price.source;
            array.append(std::move(entry));
        }
        return array;
    }

    const InstanceType& instance_;
};

}  // namespace

core::Value instance_to_value(const InstanceType& instance) { return ProfileWriter(instance).write(); }

std::string instance_to_toml(const InstanceType& instance) {
    return core::to_toml(instance_to_value(instance));
}

}  // namespace cluster
