// The cluster's links as what transfers contend for: a set of transfers that happen at once, priced by the
// most loaded link.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cluster/topology.h"
#include "core/units.h"
#include "sim/cost/constants.h"
#include "sim/cost/framework/framework.h"

namespace sim {

// One of several simultaneous transfers (from a device to itself: a copy in its memory); `share` is its part
// of the payload the price is asked for.
struct Flow {
    std::int32_t from = 0, to = 0;  // global device indices
    double share = 1.0;
};

// time(bytes) = latency + bytes * seconds_per_byte.
struct LinearCost {
    core::Seconds latency;
    double seconds_per_byte = 0;
    core::Seconds of(core::Bytes bytes) const {
        return latency + core::Seconds(bytes.value * seconds_per_byte);
    }
    LinearCost& operator+=(const LinearCost& other) {
        latency += other.latency;
        seconds_per_byte += other.seconds_per_byte;
        return *this;
    }
};
LinearCost operator*(const LinearCost& cost, double times);

// A directed link (or the memory of a device) that a communication uses, and the seconds it is busy for each
// byte of the payload.
struct LinkShare {
    std::int32_t link = 0;
    double busy = 0;
};

// A candidate over links and its part of the payload.
struct LoadedRoute {
    cluster::Route route;
    double share = 1.0;
};

// What a job gets of the network between nodes.
struct NetworkTerms {
    double share = 1;                // of the stated rate
    int flows = 0;                   // TCP flows open between two nodes; 0 = as many as fill the network
    core::BytesPerSecond flow_rate;  // of one
    core::Seconds step;              // a message between nodes; zero = the instance's latency
};
// The share by transport and number of nodes.
NetworkTerms network_terms(const cluster::Cluster& cluster, const CostConstants& constants,
                           const FrameworkTraits& traits);

class Network {
public:
    // `nvlink_efficiency`: achieved share of NVLink bandwidth where it differs from that of copies (the
    // profile's figure), as for collective kernels.
    explicit Network(const cluster::Cluster& cluster, std::optional<double> nvlink_efficiency = std::nullopt,
                     const NetworkTerms& terms = {});

    // All flows start together and share every link on their routes; the last one is done when the most
    // loaded link is: max over links of bytes / bandwidth. Exact for max-min sharing when all bottlenecks
    // carry flows of one size, as in rounds of collectives.
    LinearCost price(std::span<const Flow> flows);
    // What the flows keep busy, by link; the most loaded is what price() says.
    std::vector<LinkShare> links(std::span<const Flow> flows);
    std::vector<LinkShare> links(std::span<const LoadedRoute> routes);
    // The same on nodes so many further on.
    std::vector<LinkShare> moved(std::vector<LinkShare> links, int nodes) const;
    // Links and memories, numbered alike in every Network of one cluster.
    std::size_t link_count() const { return slots_; }
    // Over the link with the most bytes, for each byte of the payload.
    double most_bytes(const std::vector<LinkShare>& links) const;

    const cluster::Cluster& cluster() const { return cluster_; }
    // Of one message between nodes.
    core::Seconds step() const { return step_.value > 0 ? step_ : cluster_.instance.network_latency; }

private:
    void load(std::span<const Flow> flows, core::Seconds& latency);
    void load(const cluster::Route& path, double share);
    std::vector<LinkShare> take_links();
    double bandwidth_of(std::size_t slot) const;
    std::size_t slot(const cluster::DirectedLink& link) const;
    core::Seconds latency(const Flow& flow, const cluster::Route& path) const;

    const cluster::Cluster& cluster_;
    core::Seconds step_;
    std::size_t first_memory_ = 0;  // slots below are links, the rest memories of devices
    std::size_t slots_ = 0;
    std::vector<double> bandwidth_;  // per link of a node
};

}  // namespace sim
