// An instance type and a cluster of them as a graph: devices, switches, host bridges, network cards, and
// links with bandwidth per direction.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/device.h"
#include "core/units.h"
#include "core/value.h"

namespace cluster {

using DeviceId = core::Id<struct DeviceTag>;  // global: node * devices_per_node + local index

enum class VertexKind { device, nvswitch, pcie_switch, host, nic, fabric };

struct Vertex {
    std::string name;  // "gpu0", "nvswitch", "pcie1", "numa0", "nic2"
    VertexKind kind = VertexKind::device;
    int numa = 0;
};

struct Link {
    int a = 0, b = 0;  // vertex indices
    LinkKind kind = LinkKind::pcie;
    int count = 1;                   // parallel physical links
    core::BytesPerSecond bandwidth;  // of all `count` together, per direction, as the vendor states it
    double efficiency = 1.0;         // achieved share of it
    core::Seconds latency;
    bool is_full_duplex = true;  // false: both directions share `bandwidth` (CPU memory)
    std::string type;            // name of the LinkSpec it was made from: where its figures have their source
    core::BytesPerSecond effective() const { return bandwidth * efficiency; }
};

struct Price {
    std::string kind;  // "on-demand", "spot", "sagemaker"
    std::string region;
    core::DollarsPerSecond rate;
    std::string date, source;
};

// Origin of a figure of a profile.
struct Provenance {
    std::string source, date;
    std::string
        confidence;  // "measured", "vendor", "derived" or "assumed"; empty when the profile does not say
    auto operator<=>(const Provenance&) const = default;
};

// Rate between two ranks of a node, by the transport that joins them (`smexec profile`).
struct TransportRate {
    core::BytesPerSecond bandwidth;
    core::Seconds latency;
    bool operator==(const TransportRate&) const = default;
};

class RouteTable;

struct InstanceType {
    std::string name;
    std::string provider;  // "aws", "local", "synthetic"; may be empty
    DeviceSpec device;
    int devices = 0;
    std::vector<Vertex> vertices;  // the devices come first, in order: vertex i is local device i
    std::vector<Link> links;
    std::vector<Price> prices;
    core::Bytes host_memory;
    core::BytesPerSecond
        host_memory_bandwidth;  // of the node, all channels (the vendors' figure); zero: unknown
    int virtual_cpus = 0;
    core::BytesPerSecond network_bandwidth;  // of the node, all cards, per direction (vendor's figure); zero
                                             // when it has no network
    core::BytesPerSecond network_baseline;  // sustained, when the vendor's figure is a burst; else equal. The
                                            // network links carry this one
    core::BytesPerSecond per_flow_limit;    // one TCP flow; zero = none. Not part of a route's bandwidth: a
                                            // library opens several flows
    core::Seconds network_latency;          // one message, device to device, as NCCL or MPI sees it
    double network_efficiency = 1.0;        // already the `efficiency` of the network links
    bool has_gpudirect = false;
    std::string network_name;  // "efa", "tcp", "shared-memory"
    std::map<std::string, TransportRate>
        transports;                  // "threads", "tcp", "mpi"; the links are those of one of them
    std::vector<std::string> notes;  // doubts a user should see, among them every assumed figure
    std::map<std::string, Provenance> provenance;  // by dotted path of a section or key of the profile:
                                                   // "device", "device.memory", "topology.link.nvlink"
    std::vector<std::string> files;                // the profile and the device file it names
    std::shared_ptr<const RouteTable> routes;  // made by prepare_routes; null in an instance built by hand
                                               // (routes are then searched at every call)
};

struct Cluster {
    InstanceType instance;
    int nodes = 1;
    std::vector<std::string> assumptions =
        {};                  // what-if overrides in words: "network_bandwidth = 100 GB/s instead of 50 GB/s"
    int ranks_per_node = 0;  // 0 = one for every device; fewer leave the last devices of each node idle
    core::Value table = {};  // the [cluster] table it was read from; null: the instance as its profile has it

    int device_count() const { return nodes * instance.devices; }
    int node_of(DeviceId device) const { return device.index / instance.devices; }
    int local_index(DeviceId device) const { return device.index % instance.devices; }
};

// One directed use of a link of one node (or of the fabric between nodes): the resource on which contention
// is counted.
struct DirectedLink {
    std::int32_t node = 0;
    std::int32_t link = 0;
    bool forward = true;  // from a to b
    auto operator<=>(const DirectedLink&) const = default;
};

// The links of a route in order, stored inside the object: routes are asked for by the million.
class LinkPath {
public:
    static constexpr std::size_t capacity = 16;

    void push_back(
        DirectedLink link);  // beyond capacity is a broken promise: prepare_routes refuses such graphs
    std::size_t size() const { return size_; }
    bool empty() const { return size_ == 0; }
    const DirectedLink& operator[](std::size_t i) const { return links_[i]; }
    const DirectedLink& front() const { return links_[0]; }
    const DirectedLink& back() const { return links_[size_ - 1]; }
    const DirectedLink* begin() const { return links_.data(); }
    const DirectedLink* end() const { return links_.data() + size_; }
    DirectedLink* begin() { return links_.data(); }
    DirectedLink* end() { return links_.data() + size_; }

private:
    std::array<DirectedLink, capacity> links_{};
    std::uint32_t size_ = 0;
};

struct Route {
    LinkPath links;
    core::Seconds latency;
    core::BytesPerSecond bandwidth;  // of the narrowest link alone on it
    DirectedLink bottleneck;         // the first of the narrowest; meaningless when `links` is empty
};

// Shortest widest path between two devices. Inside a node over NVLink, PCIe or host, never through a third
// device; between nodes over each end's nearest network card (cards equally near are dealt out by device
// index) and a fabric that does not block, through the host when the instance has no GPUDirect. The latency
// inside a node is the sum over links, between nodes `network_latency`. A device to itself: no links, no
// latency, infinite bandwidth.
Route route(const Cluster& cluster, DeviceId from, DeviceId to);
// From a device to the memory of its host and back (offload, checkpoint, input): the reverse route uses the
// same links the other way.
Route route_to_host(const Cluster& cluster, DeviceId device);
Route reversed(const Route& route);
core::BytesPerSecond effective_bandwidth(const Cluster& cluster, const DirectedLink& link);
// Computes all routes of one node, so that route() is a look-up. The loaders call it; call it again after
// changing vertices, links, `has_gpudirect` or `network_latency` of an instance. False, with the reason, when
// a device cannot be reached or a path is too long.
bool prepare_routes(InstanceType& instance, std::string* reason = nullptr);
// The sum over a device's NVLinks of both directions, as vendors quote it ("600 GB/s"); zero when it has
// none.
core::BytesPerSecond nvlink_bandwidth_both_directions(const InstanceType& instance, int device);

std::string_view name_of(VertexKind kind);
std::string_view name_of(LinkKind kind);

// The rate of one node; nothing when the profile has no such price ("on-demand", "spot", "sagemaker"; empty
// region = the first listed).
std::optional<core::DollarsPerSecond> find_price(const InstanceType& instance, std::string_view kind,
                                                 std::string_view region = {});
// The on-demand (or other kind) rate of the whole cluster; zero when the profile has none (ask find_price to
// tell unknown from free).
core::DollarsPerSecond price(const Cluster& cluster, const std::string& kind = "on-demand");

}  // namespace cluster
