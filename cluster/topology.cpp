#include "cluster/topology.h"

namespace cluster {

std::string_view name_of(VertexKind kind) {
    switch (kind) {
        case VertexKind::device: return "device";
        case VertexKind::nvswitch: return "nvswitch";
        case VertexKind::pcie_switch: return "pcie_switch";
        case VertexKind::host: return "host";
        case VertexKind::nic: return "nic";
        case VertexKind::fabric: return "fabric";
    }
    return "";
}

std::string_view name_of(LinkKind kind) {
    switch (kind) {
        case LinkKind::nvlink: return "nvlink";
        case LinkKind::pcie: return "pcie";
        case LinkKind::host_interconnect: return "host_interconnect";
        case LinkKind::network: return "network";
        case LinkKind::memory: return "memory";
    }
    return "";
}

core::BytesPerSecond nvlink_bandwidth_both_directions(const InstanceType& instance, int device) {
    core::BytesPerSecond sum;
    for (const Link& link : instance.links)
        if (link.kind == LinkKind::nvlink && (link.a == device || link.b == device))
            sum += link.bandwidth * 2.0;
    return sum;
}

std::optional<core::DollarsPerSecond> find_price(const InstanceType& instance, std::string_view kind,
                                                 std::string_view region) {
    for (const Price& price : instance.prices)
        if (price.kind == kind && (region.empty() || price.region == region)) return price.rate;
    return std::nullopt;
}

core::DollarsPerSecond price(const Cluster& cluster, const std::string& kind) {
    return find_price(cluster.instance, kind).value_or(core::DollarsPerSecond()) * cluster.nodes;
}

}  // namespace cluster
