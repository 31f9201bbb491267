// Figures of a cluster's nodes that follow from the facts of its profile.
#pragma once

#include <cstdint>
#include <vector>

#include "cluster/topology.h"

namespace cluster {

// Ranks fill one node after the other: one on each device, or fewer where the cluster says so. Beyond the
// last node they start again at the first (processes that share cores).
int ranks_of_a_node(const Cluster& cluster);  // in one round
int node_of_rank(const Cluster& cluster, int rank);
int most_ranks_of_a_node(const Cluster& cluster, int ranks);  // ranks on the fullest node, of `ranks` in all

// Of these devices, on the node that has most of them; at least one.
int most_devices_of_a_node(const Cluster& cluster, const std::vector<std::int32_t>& devices);

// Can it be one of several nodes?
bool has_network(const InstanceType& instance);

}  // namespace cluster
