// An instance type and a cluster of them as a graph: devices, switches, host bridges, network cards, and links with bandwidth per direction.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cluster/device.h"
#include "core/units.h"

namespace cluster {

using DeviceId = core::Id<struct DeviceTag>;  // global: node * devices_per_node + local index

enum class VertexKind { device, nvswitch, pcie_switch, host, nic, fabric };
enum class LinkKind { nvlink, pcie, host_interconnect, network, memory };

struct Vertex {
    std::string name;  // "gpu0", "nvswitch", "pcie1", "numa0", "nic2"
    VertexKind kind = VertexKind::device;
    int numa = 0;
};

struct Link {
    int a = 0, b = 0;  // vertex indices
    LinkKind kind = LinkKind::pcie;
    int count = 1;                       // parallel physical links
    core::BytesPerSecond bandwidth;      // of all `count` together, per direction, as the vendor states it
    double efficiency = 1.0;             // achieved share of it
    core::Seconds latency;
    bool is_full_duplex = true;          // false: both directions share `bandwidth` (CPU memory)
    core::BytesPerSecond effective() const { return bandwidth * efficiency; }
};

struct Price {
    std::string kind;  // "on-demand", "spot", "sagemaker"
    std::string region;
    core::DollarsPerSecond rate;
    std::string date, source;
};

struct InstanceType {
    std::string name;
    DeviceSpec device;
    int devices = 0;
    std::vector<Vertex> vertices;
    std::vector<Link> links;
    std::vector<Price> prices;
    core::Bytes host_memory;
    int virtual_cpus = 0;
    core::BytesPerSecond network_bandwidth;         // of the node, all cards, per direction (vendor's figure)
    core::BytesPerSecond network_baseline;          // sustained, when the vendor's figure is a burst; else equal
    core::BytesPerSecond per_flow_limit;            // one TCP flow; zero = none
    core::Seconds network_latency;                  // one message, device to device, as NCCL or MPI sees it
    double network_efficiency = 1.0;
    bool has_gpudirect = false;
    std::string network_name;                       // "efa", "tcp", "shared-memory"
    std::vector<std::string> notes;                 // doubts a user should see
};

struct Cluster {
    InstanceType instance;
    int nodes = 1;

    int device_count() const { return nodes * instance.devices; }
    int node_of(DeviceId device) const { return device.index / instance.devices; }
    int local_index(DeviceId device) const { return device.index % instance.devices; }
};

// One directed use of a link of one node (or of the fabric between nodes): what contention is counted on.
struct DirectedLink {
    std::int32_t node = 0;
    std::int32_t link = 0;
    bool forward = true;  // from a to b
    auto operator<=>(const DirectedLink&) const = default;
};

struct Route {
    std::vector<DirectedLink> links;
    core::Seconds latency;
    core::BytesPerSecond bandwidth;  // of the narrowest link alone on it
    DirectedLink bottleneck;
};

// Shortest widest path between two devices; inside a node over NVLink, PCIe or host, between nodes over each end's nearest network card.
// A device to itself: no links, no latency, infinite bandwidth.
Route route(const Cluster& cluster, DeviceId from, DeviceId to);
core::BytesPerSecond effective_bandwidth(const Cluster& cluster, const DirectedLink& link);
// The on-demand (or other kind) rate of the whole cluster.
core::DollarsPerSecond price(const Cluster& cluster, const std::string& kind = "on-demand");

}  // namespace cluster
