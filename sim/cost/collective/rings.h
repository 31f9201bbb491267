// Rings as NCCL lays them: which orders of a group's devices, and how the payload is divided over them.
#pragma once

#include <cstdint>
#include <vector>

#include "cluster/topology.h"

namespace sim {

struct Ring {
    std::vector<std::int32_t> devices;  // global; the last sends to the first
    double share = 1.0;                 // of the payload
};

// Inside a node of directly joined devices (hybrid cube mesh): the largest set of rings that use every
// physical NVLink at most once, each in both directions. Behind a switch: one ring, which fills every
// device's port. Over several nodes: one ring for each device of a node, so that each leaves the node at
// another device and all network cards carry their part. Shares add up to 1.
std::vector<Ring> rings(const cluster::Cluster& cluster, const std::vector<std::int32_t>& group);

// The group's devices by node, nodes in order of appearance, in the order in which a ring or chain visits
// them.
std::vector<std::vector<std::int32_t>> orders_in_nodes(const cluster::Cluster& cluster,
                                                       const std::vector<std::int32_t>& group);

}  // namespace sim
