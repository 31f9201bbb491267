#include "cluster/synthetic.h"

#include <algorithm>
#include <filesystem>

#include "cluster/build_topology.h"
#include "cluster/profile/load.h"
#include "cluster/profile/profile_reader.h"
#include "core/diagnostics.h"

namespace cluster {

namespace {

// Figures of a network for scenarios that give none. Efficiency: NVIDIA's slide S62129 (GTC 2024) puts NCCL
// at 24 of 25 GB/s over 200G RDMA and 48 of 50 over 400G, 10 of 12.5 GB/s over 100G TCP. Latency: libfabric
// fi_pingpong on EFA 24-38 us; small inter-node send/recv of vidur's A100 and H100 clusters 24-27 and 17-18
// us; TCP is half of a two-step ring that took about 200 us on g4dn (hardware facts of 2026-11, sections 4.1
// to 4.4).
struct Transport {
    std::string_view name;
    double efficiency;
    core::Seconds latency;
    bool has_gpudirect;
};
const Transport transports[] = {
    {"infiniband", 0.96, core::microseconds(20), true}, {"roce", 0.96, core::microseconds(20), true},
    {"omnipath", 0.85, core::microseconds(25), true},   {"efa", 0.85, core::microseconds(75), true},
    {"tcp", 0.80, core::microseconds(100), false},
};
// As the profiles of V100, A100 and H100 have it, for devices whose profile states no NVLink.
constexpr core::Seconds nvlink_latency = core::microseconds(0.95);
// A device of a hybrid cube mesh has six links (DGX-1 with V100).
constexpr double links_of_a_cube_mesh_device = 6;
const std::string transport_source = "figures of its kind: NVIDIA S62129 (GTC 2024), vidur, fi_pingpong";

const LinkSpec* link_of(const DeviceSpec& device, LinkKind kind) {
    for (const LinkSpec& spec : device.links)
        if (spec.kind == kind) return &spec;
    return nullptr;
}

// Between the two sockets of a server: 10 GB/s is what NCCL assumes for Skylake's UPI (NCCL 2.30.7 topo.h),
// between BDW's 6 and AMD's 16.
LinkSpec socket_link() {
    LinkSpec spec;
    spec.name = "socket";
    spec.kind = LinkKind::host_interconnect;
    spec.bandwidth = core::gigabytes_per_second(10);
    spec.latency = core::microseconds(0.5);
    return spec;
}

class NodeBuilder {
public:
    NodeBuilder(const NodeShape& shape, const DeviceFile& device, core::Diagnostics& diagnostics,
                const core::SourceLocation& referrer, const std::string& key)
        : shape_(shape),
          diagnostics_(diagnostics),
          referrer_(referrer),
          key_(key),
          cards_(shape.network_cards) {
        instance_.name = std::to_string(shape.devices_per_node) + "x" + device.device.name;
        instance_.provider = "synthetic";
        instance_.device = device.device;
        instance_.devices = shape.devices_per_node;
        instance_.host_memory = shape.host_memory;
        instance_.host_memory_bandwidth = shape.host_memory_bandwidth;
        instance_.notes = device.notes;
        instance_.provenance = device.provenance;
        instance_.files.push_back(device.file);
        const LinkSpec* pcie = link_of(instance_.device, LinkKind::pcie);
        const LinkSpec* nvlink = link_of(instance_.device, LinkKind::nvlink);
        if (pcie) pcie_ = *pcie;
        if (nvlink) nvlink_ = *nvlink;
        has_pcie_ = pcie != nullptr;
        has_nvlink_ = nvlink != nullptr;
    }

    std::optional<InstanceType> build() {
        if (!check()) return std::nullopt;
        read_network();
        join_hosts();
        join_devices();
        if (shape_.network_bandwidth.value > 0) add_fabric(instance_, cards_);
        assign_numa(instance_);
        std::string reason;
        core::require(prepare_routes(instance_, &reason), "a node made to measure is connected: " + reason);
        for (std::string& note : notes_of_assumptions(instance_.provenance))
            instance_.notes.push_back(std::move(note));
        return std::move(instance_);
    }

private:
    void error(const std::string& name, const std::string& message, const std::string& hint) {
        diagnostics_.error(referrer_, key_ + "." + name, message, hint);
    }

    void assume(const std::string& path, const std::string& source) {
        instance_.provenance[path] = {source, "2026-11-21", "assumed"};
    }

    bool check() {
        const std::size_t before = diagnostics_.error_count();
        const int n = shape_.devices_per_node;
        if (n < 1 || n > most_devices)
            error("devices_per_node", key_ + ".devices_per_node = " + std::to_string(n) + " is out of range",
                  "give 1 to " + std::to_string(most_devices));
        std::vector<std::string> names = intra_names();
        if (std::find(names.begin(), names.end(), shape_.intra) == names.end()) {
            std::string near = core::did_you_mean(shape_.intra, names);
            error("intra", key_ + ".intra = " + core::in_quotes(shape_.intra) + " is no way to join devices",
                  near.empty() ? "use " + core::list_in_words(names)
                               : "did you mean " + core::in_quotes(near) + "?");
        }
        const bool wants_nvlink =
            shape_.intra == "nvswitch" || shape_.intra == "hybrid-cube-mesh" || shape_.intra == "full-mesh";
        if (wants_nvlink && n > 1 && !has_nvlink_ && !shape_.intra_bandwidth)
            error("intra", instance_.device.name + " has no NVLink",
                  "use intra = \"pcie\" or \"host\", or say intra_bandwidth");
        if (shape_.intra == "hybrid-cube-mesh" && n != 8 && n != 4 && n != 1)
            error("intra", "the hybrid cube mesh joins 8 devices, or 4 of them",
                  "set devices_per_node = 8 or 4");
        if (!has_pcie_ && !shape_.pcie_bandwidth)
            error("device", instance_.device.name + " has no PCIe figures", "say pcie_bandwidth");
        if (shape_.network_cards < 0 || shape_.network_cards > 256)
            error("network_cards",
                  key_ + ".network_cards = " + std::to_string(shape_.network_cards) + " is out of range",
                  "give 1 to 256");
        if (std::none_of(std::begin(transports), std::end(transports),
                         [&](const Transport& t) { return t.name == shape_.transport; }))
            error("transport", key_ + ".transport = " + core::in_quotes(shape_.transport) + " is not known",
                  "use " + core::list_in_words(transport_names()));
        return diagnostics_.error_count() == before;
    }

    void read_network() {
        if (shape_.network_bandwidth.value <= 0) return;
        const Transport& transport =
            *std::find_if(std::begin(transports), std::end(transports),
                          [&](const Transport& t) { return t.name == shape_.transport; });
        instance_.network_name = shape_.transport;
        instance_.network_bandwidth = instance_.network_baseline = shape_.network_bandwidth;
        instance_.network_latency = shape_.network_latency.value_or(transport.latency);
        instance_.network_efficiency = shape_.network_efficiency.value_or(transport.efficiency);
        instance_.has_gpudirect =
            shape_.has_gpudirect.value_or(transport.has_gpudirect && instance_.device.has_gpudirect);
        instance_.provenance["network"] = {"the scenario", "", ""};
        if (!shape_.network_latency)
            assume("network.latency",
                   core::format(transport.latency) + " for " + shape_.transport + ", " + transport_source);
        if (!shape_.network_efficiency)
            assume("network.efficiency", std::to_string(static_cast<int>(transport.efficiency * 100 + 0.5)) +
                                             " % for " + shape_.transport + ", " + transport_source);
        if (!shape_.has_gpudirect)
            assume("network.gpudirect", std::string(instance_.has_gpudirect ? "yes" : "no") +
                                            ", as usual for " + shape_.transport + " and " +
                                            instance_.device.name);
    }

    // The PCIe tree: one or two sockets, a switch for every two devices (not for intra = "host"), the cards
    // dealt out over the switches or sockets.
    void join_hosts() {
        if (shape_.pcie_bandwidth) {
            pcie_.bandwidth = *shape_.pcie_bandwidth;
            if (!has_pcie_) pcie_.name = "pcie";
        }
        pcie_.count = 1;
        const int n = shape_.devices_per_node;
        const bool has_switches = shape_.intra != "host" && n > 1;
        const int sockets = n > 4 ? 2 : 1;
        for (int i = 0; i < n; ++i) add_vertex(instance_, "gpu" + std::to_string(i), VertexKind::device);
        std::vector<int> hosts, roots;
        for (int i = 0; i < sockets; ++i)
            hosts.push_back(add_vertex(instance_, "numa" + std::to_string(i), VertexKind::host));
        if (sockets == 2) add_link(instance_, hosts[0], hosts[1], socket_link());
        if (shape_.intra == "nvswitch" && n > 1)
            nvswitch_ = add_vertex(instance_, "nvswitch", VertexKind::nvswitch);
        // Devices, then switches, in equal runs over the sockets.
        const int groups = has_switches ? (n + 1) / 2 : sockets;
        for (int i = 0; i < groups; ++i) {
            if (!has_switches) {
                roots.push_back(hosts[i]);
                continue;
            }
            roots.push_back(add_vertex(instance_, "pcie" + std::to_string(i), VertexKind::pcie_switch));
            add_link(instance_, roots.back(), hosts[i * sockets / groups], pcie_);
        }
        for (int i = 0; i < n; ++i)
            add_link(instance_, i, roots[has_switches ? i / 2 : i * sockets / n], pcie_);
        assume("topology", has_switches ? "two devices on a PCIe switch, switches on " +
                                              std::to_string(sockets) + " socket(s), 10 GB/s between sockets"
                                        : "devices on " + std::to_string(sockets) +
                                              " socket(s), 10 GB/s between sockets");
        if (shape_.network_bandwidth.value <= 0) return;
        // Cards beyond one a switch become one fat card there: a library stripes over them. The card's own
        // link is not narrower than what it carries.
        if (shape_.network_cards == 0) {
            cards_ = instance_.has_gpudirect ? groups : 1;
            assume("network.cards",
                   std::to_string(cards_) + std::string(cards_ > 1 ? ", one beside every pair of devices"
                                                                   : ", on the first socket"));
        }
        int places = std::min(cards_, groups);
        while (cards_ % places != 0) --places;
        LinkSpec slot = pcie_;
        slot.bandwidth = std::max(slot.bandwidth, instance_.network_baseline / places);
        slot.efficiency = 1;
        slot.name = "card-slot";
        for (int i = 0; i < places; ++i) {
            const int nic = add_vertex(instance_, "nic" + std::to_string(i), VertexKind::nic);
            add_link(instance_, nic, roots[i * groups / places], slot);
        }
        // A scenario that promises a network rate means it; where the PCIe links cannot carry it, say so.
        if (instance_.network_baseline / places * instance_.network_efficiency >
            pcie_.bandwidth * pcie_.efficiency)
            instance_.notes.push_back("one device alone is held to " +
                                      core::format(pcie_.bandwidth * pcie_.efficiency) +
                                      " on its way to a network card by its PCIe link");
    }

    void join_devices() {
        const int n = shape_.devices_per_node;
        const bool wants_nvlink =
            shape_.intra == "nvswitch" || shape_.intra == "hybrid-cube-mesh" || shape_.intra == "full-mesh";
        if (n == 1 || !wants_nvlink) return;
        LinkSpec link = nvlink_;
        if (!has_nvlink_) {
            link.name = "nvlink";
            link.kind = LinkKind::nvlink;
            link.latency = nvlink_latency;
        }
        if (shape_.intra_bandwidth) link.bandwidth = *shape_.intra_bandwidth / link.count;
        if (shape_.intra == "nvswitch") {
            for (int i = 0; i < n; ++i) add_link(instance_, i, nvswitch_, link, link.count);
            return;
        }
        // Without a switch a route is one link, not two: the same time from end to end.
        link.latency = link.latency * 2.0;
        if (shape_.intra == "hybrid-cube-mesh") {
            if (shape_.intra_bandwidth)
                link.bandwidth = *shape_.intra_bandwidth / links_of_a_cube_mesh_device;
            for (int a = 0; a < n; ++a)
                for (int b = a + 1; b < n; ++b)
                    if (int count = hybrid_cube_mesh_links(a, b)) add_link(instance_, a, b, link, count);
            return;
        }
        link.bandwidth = link.bandwidth * (static_cast<double>(link.count) / (n - 1));
        for (int a = 0; a < n; ++a)
            for (int b = a + 1; b < n; ++b) add_link(instance_, a, b, link);
    }

    const NodeShape& shape_;
    core::Diagnostics& diagnostics_;
    const core::SourceLocation& referrer_;
    const std::string& key_;
    InstanceType instance_;
    LinkSpec pcie_, nvlink_;
    int cards_ = 0;
    int nvswitch_ = -1;
    bool has_pcie_ = false, has_nvlink_ = false;
};

}  // namespace

std::vector<std::string> intra_names() {
    return {"nvswitch", "hybrid-cube-mesh", "full-mesh", "pcie", "host"};
}

std::vector<std::string> transport_names() {
    std::vector<std::string> names;
    for (const Transport& transport : transports) names.emplace_back(transport.name);
    return names;
}

TransportFigures transport_figures(const std::string& name) {
    for (const Transport& transport : transports)
        if (transport.name == name) return {transport.efficiency, transport.latency, transport.has_gpudirect};
    throw core::InternalError("broken promise: transport " + name + " is one of the list");
}

void use_transport(InstanceType& instance, const std::string& name) {
    const TransportFigures figures = transport_figures(name);
    instance.network_name = name;
    instance.network_latency = figures.latency;
    instance.network_efficiency = std::min(instance.network_efficiency, figures.efficiency);
    instance.has_gpudirect = figures.has_gpudirect && instance.device.has_gpudirect;
}

std::vector<std::string> device_names() {
    std::vector<std::string> names;
    for (const std::string& file : profile_files())
        if (std::filesystem::path(file).parent_path().filename() == "devices")
            names.push_back(std::filesystem::path(file).stem().string());
    return names;
}

std::optional<DeviceSpec> load_device(const std::string& name, core::Diagnostics& diagnostics,
                                      const core::SourceLocation& referrer, const std::string& key) {
    std::optional<DeviceFile> file = find_device_file(name, diagnostics, referrer, key);
    if (!file) return std::nullopt;
    return std::move(file->device);
}

std::optional<InstanceType> build_instance(const NodeShape& shape, core::Diagnostics& diagnostics,
                                           const core::SourceLocation& referrer, const std::string& key) {
    std::optional<DeviceFile> device = find_device_file(shape.device, diagnostics, referrer, key + ".device");
    if (!device) return std::nullopt;
    return NodeBuilder(shape, *device, diagnostics, referrer, key).build();
}

}  // namespace cluster
