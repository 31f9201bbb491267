// NVIDIA's collective library as its own tuner sees it: rings, trees and NVLink SHARP, each in the protocols
// it knows, with their fixed times, caps of bandwidth and channels. Which bytes cross which links follows
// from the topology; which algorithm and protocol runs is the one with the least time, as in the library.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cluster/topology.h"
#include "core/index/integers.h"
#include "schedule/program/program.h"
#include "sim/cost/collective/candidate.h"
#include "sim/cost/collective/network.h"

namespace sim {

// Groups of one kind that communicate at the same time; alike in size and in how they lie on nodes.
struct Groups {
    std::vector<std::vector<std::int32_t>> devices;  // global, in group order

    int size() const { return core::count_of(devices.front()); }
};

struct GroupShape {
    int ranks = 1, nodes = 1, ranks_per_node = 1;  // the most of any node
    bool is_over_nvlink = false;                   // neighbours inside a node are joined by NVLink alone
    bool is_over_nvswitch = false;                 // ... and by a switch
};
GroupShape shape_of(const cluster::Cluster& cluster, const std::vector<std::int32_t>& group);

// Devices whose collectives are NCCL's.
bool has_nccl(const cluster::DeviceSpec& device);

// What one channel moves over one NVLink, over the link's stated rate; nothing where NCCL states none.
std::optional<double> nccl_nvlink_efficiency(const cluster::DeviceSpec& device);

// Every candidate NCCL has for this collective. Never empty for more than one rank.
std::vector<Candidate> nccl_candidates(const cluster::Cluster& cluster, Network& network,
                                       schedule::CollectiveKind kind, const Groups& groups);

// Most multiprocessors that NCCL takes on a device: one a channel.
double nccl_multiprocessors(const cluster::DeviceSpec& device);
int nccl_channels(const cluster::Cluster& cluster, const GroupShape& shape);

}  // namespace sim
