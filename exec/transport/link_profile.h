// What the links between the processes of a job carry, measured over the transport that will carry the plan,
// as a cluster for the simulator.
#pragma once

#include <string>

#include "cluster/topology.h"
#include "exec/transport/world.h"

namespace exec::transport {

struct LinkProfile {
    int ranks_a_machine = 1,
        cores_a_machine = 1;  // the most ranks that share one kernel: emulated hosts share its cores
    core::BytesPerSecond
        within_bandwidth;  // from rank to rank of one host, both sending; zero = no host has two
    core::Seconds within_latency;
    core::BytesPerSecond between_bandwidth;  // out of a host, all its ranks sending to the next host and
                                             // receiving from the one before; zero = one host
    core::Seconds between_latency;
};

// Every rank calls; all get the same figures. Takes two to three seconds at 100 Mbit/s.
LinkProfile measure_links(World& world);

// `base` (the local CPU) as the hosts of this world: a device for every rank of a host, links as measured.
// Between hosts buckets are exchanged beside the computation: the device has concurrent streams then. Ranks
// must be spread evenly.
cluster::Cluster cluster_of(const cluster::InstanceType& base, const LinkProfile& links, const World& world,
                            const std::string& date);

}  // namespace exec::transport
