#include "sim/cost/collective/network.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "cluster/synthetic.h"
#include "core/index/integers.h"

namespace sim {

namespace {

// Per slot of a network the share of the payload that crosses it. Between prices it is empty, so the networks
// of one thread take turns with one array: a search has hundreds of them, of clusters of ten thousand
// devices.
class Loads {
public:
    void grow(std::size_t slots) {
        if (load_.size() < slots) load_.resize(slots, 0.0);
    }
    void add(std::size_t slot, double share) {
        if (load_[slot] == 0) touched_.push_back(slot);
        load_[slot] += share;
    }
    void sort() { std::sort(touched_.begin(), touched_.end()); }
    std::size_t count() const { return touched_.size(); }
    // Calls `use(slot, load)` for each, after which there is none.
    template <class Use>
    void take(const Use& use) {
        for (const std::size_t slot : touched_) use(slot, std::exchange(load_[slot], 0.0));
        touched_.clear();
    }

private:
    std::vector<double> load_;
    std::vector<std::size_t> touched_;
};

Loads& loads_of(std::size_t slots) {
    thread_local Loads loads;
    loads.grow(slots);
    return loads;
}

}  // namespace

LinearCost operator*(const LinearCost& cost, double times) {
    return {cost.latency * times, cost.seconds_per_byte * times};
}

NetworkTerms network_terms(const cluster::Cluster& cluster, const CostConstants& constants,
                           const FrameworkTraits& traits) {
    const std::string& name = cluster.instance.network_name;
    double base = name == "infiniband" ? constants.rate_infiniband
                  : name == "roce"     ? constants.rate_roce
                  : name == "omnipath" ? constants.rate_omnipath
                  : name == "tcp"      ? constants.rate_tcp
                  : name == "efa"      ? constants.rate_efa
                                       : 1.0;
    // More nodes lose more to each other's congestion.
    const double doublings = std::log2(std::max(2, cluster.nodes)) - 1;
    NetworkTerms terms;
    // Over the same cards and switches, TCP's copies only add to what verbs do. (Instances of a cloud are
    // known by their own measurements.)
    if (name == "tcp" && cluster.instance.provider != "aws")
        base =
            std::min(base, constants.rate_infiniband * cluster::transport_figures("infiniband").efficiency /
                               cluster::transport_figures(name).efficiency);
    terms.share = base / (1 + constants.decay_per_doubling * doublings);
    // NCCL opens 16 sockets on AWS's cards and one on others of each channel, of which there are two
    // (net_socket.cc, autoNt and autoNs by vendor).
    constexpr int flows_on_aws = 16, flows_on_others = 2;
    const int nccl_flows = cluster.instance.provider == "aws" ? flows_on_aws : flows_on_others;
    terms.flows = name != "tcp"                               ? 0
                  : traits.tcp_flows > 0                      ? traits.tcp_flows
                  : cluster.instance.per_flow_limit.value > 0 ? nccl_flows
                                                              : 0;
    terms.flow_rate = traits.tcp_flow_rate.value > 0 ? traits.tcp_flow_rate : cluster.instance.per_flow_limit;
    if (traits.tcp_flows > 0) terms.step = traits.tcp_step;
    return terms;
}

Network::Network(const cluster::Cluster& cluster, std::optional<double> nvlink_efficiency,
                 const NetworkTerms& terms)
    : cluster_(cluster), step_(terms.step) {
    const std::size_t links = cluster.instance.links.size();
    // Links of every node in both directions, then the memories of the devices, last device first.
    first_memory_ = links * 2 * std::max(1, cluster.nodes);
    slots_ = first_memory_ + cluster.device_count();
    for (const cluster::Link& link : cluster.instance.links) {
        double rate = link.kind == cluster::LinkKind::nvlink && nvlink_efficiency
                          ? link.bandwidth.value * *nvlink_efficiency
                          : link.effective().value;
        if (link.kind == cluster::LinkKind::network) {
            rate *= terms.share;
            if (terms.flows > 0 && terms.flow_rate.value > 0)
                rate = std::min(rate, terms.flows * terms.flow_rate.value);
        }
        bandwidth_.push_back(rate);
    }
}

std::size_t Network::slot(const cluster::DirectedLink& link) const {
    const std::size_t links = cluster_.instance.links.size();
    const bool is_forward = link.forward || !cluster_.instance.links[link.link].is_full_duplex;
    return (link.node * links + link.link) * 2 + (is_forward ? 0 : 1);
}

double Network::bandwidth_of(std::size_t slot) const {
    const cluster::DeviceSpec& device = cluster_.instance.device;
    return slot < first_memory_ ? bandwidth_[slot / 2 % bandwidth_.size()]
                                : device.memory_bandwidth.value * device.memory_efficiency;
}

void Network::load(std::span<const Flow> flows, core::Seconds& slowest) {
    for (const Flow& flow : flows) {
        if (flow.share <= 0) continue;
        if (flow.from == flow.to) {
            // Two ranks of one device: a copy inside its memory, read and written.
            loads_of(slots_).add(slots_ - 1 - flow.from, 2 * flow.share);
            continue;
        }
        const cluster::Route path =
            cluster::route(cluster_, cluster::DeviceId(flow.from), cluster::DeviceId(flow.to));
        slowest = std::max(slowest, latency(flow, path));
        load(path, flow.share);
    }
}

void Network::load(const cluster::Route& path, double share) {
    if (share <= 0) return;
    Loads& loads = loads_of(slots_);
    for (const cluster::DirectedLink& link : path.links) loads.add(slot(link), share);
}

LinearCost Network::price(std::span<const Flow> flows) {
    LinearCost cost;
    load(flows, cost.latency);
    loads_of(slots_).take([&](std::size_t at, double load) {
        cost.seconds_per_byte = std::max(cost.seconds_per_byte, load / bandwidth_of(at));
    });
    return cost;
}

std::vector<LinkShare> Network::links(std::span<const Flow> flows) {
    core::Seconds unused;
    load(flows, unused);
    return take_links();
}

std::vector<LinkShare> Network::links(std::span<const LoadedRoute> routes) {
    for (const LoadedRoute& route : routes) load(route.route, route.share);
    return take_links();
}

std::vector<LinkShare> Network::take_links() {
    Loads& loads = loads_of(slots_);
    loads.sort();
    std::vector<LinkShare> result;
    result.reserve(loads.count());
    loads.take([&](std::size_t at, double load) {
        result.push_back({static_cast<std::int32_t>(at), load / bandwidth_of(at)});
    });
    return result;
}

std::vector<LinkShare> Network::moved(std::vector<LinkShare> links, int nodes) const {
    const auto slots = core::narrow<std::int32_t>(cluster_.instance.links.size() * 2 * std::size_t(nodes));
    const std::int32_t devices = cluster_.instance.devices * nodes;
    for (LinkShare& share : links) share.link += std::cmp_less(share.link, first_memory_) ? slots : -devices;
    return links;
}

double Network::most_bytes(const std::vector<LinkShare>& links) const {
    double most = 0;
    for (const LinkShare& link : links) most = std::max(most, link.busy * bandwidth_of(link.link));
    return most;
}

core::Seconds Network::latency(const Flow& flow, const cluster::Route& path) const {
    const bool crosses =
        cluster_.node_of(cluster::DeviceId(flow.from)) != cluster_.node_of(cluster::DeviceId(flow.to));
    return crosses && step_.value > 0 ? step_ : path.latency;
}

}  // namespace sim
