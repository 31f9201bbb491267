#include "sim/cost/network.h"

#include <algorithm>

namespace sim {

LinearCost operator*(const LinearCost& cost, double times) { return {cost.latency * times, cost.seconds_per_byte * times}; }

Network::Network(const cluster::Cluster& cluster, std::optional<double> nvlink_efficiency) : cluster_(cluster) {
    const std::size_t links = cluster.instance.links.size();
    // Links of every node in both directions, then the memories of the devices, last device first.
    first_memory_ = links * 2 * static_cast<std::size_t>(std::max(1, cluster.nodes));
    load_.assign(first_memory_ + static_cast<std::size_t>(cluster.device_count()), 0.0);
    for (const cluster::Link& link : cluster.instance.links)
        bandwidth_.push_back(link.kind == cluster::LinkKind::nvlink && nvlink_efficiency ? link.bandwidth.value * *nvlink_efficiency : link.effective().value);
}

std::size_t Network::slot(const cluster::DirectedLink& link) const {
    const std::size_t links = cluster_.instance.links.size();
    const bool is_forward = link.forward || !cluster_.instance.links[static_cast<std::size_t>(link.link)].is_full_duplex;
    return (static_cast<std::size_t>(link.node) * links + static_cast<std::size_t>(link.link)) * 2 + (is_forward ? 0 : 1);
}

LinearCost Network::price(std::span<const Flow> flows) {
    LinearCost cost;
    for (const Flow& flow : flows) {
        if (flow.share <= 0) continue;
        if (flow.from == flow.to) {
            // Two ranks of one device: a copy inside its memory, read and written.
            const std::size_t at = load_.size() - 1 - static_cast<std::size_t>(flow.from);
            if (load_[at] == 0) touched_.push_back(at);
            load_[at] += 2 * flow.share;
            continue;
        }
        const cluster::Route path = cluster::route(cluster_, cluster::DeviceId(flow.from), cluster::DeviceId(flow.to));
        cost.latency = std::max(cost.latency, path.latency);
        for (const cluster::DirectedLink& link : path.links) {
            const std::size_t at = slot(link);
            if (load_[at] == 0) touched_.push_back(at);
            load_[at] += flow.share;
        }
    }
    for (std::size_t at : touched_) {
        const cluster::DeviceSpec& device = cluster_.instance.device;
        const double bandwidth = at < first_memory_ ? bandwidth_[at / 2 % bandwidth_.size()] : device.memory_bandwidth.value * device.memory_efficiency;
        cost.seconds_per_byte = std::max(cost.seconds_per_byte, load_[at] / bandwidth);
        load_[at] = 0;
    }
    touched_.clear();
    return cost;
}

core::Seconds Network::mean_latency(std::span<const Flow> flows) const {
    core::Seconds sum;
    for (const Flow& flow : flows) sum += cluster::route(cluster_, cluster::DeviceId(flow.from), cluster::DeviceId(flow.to)).latency;
    return flows.empty() ? sum : sum / static_cast<double>(flows.size());
}

}  // namespace sim
