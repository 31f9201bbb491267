// Groups of ranks that lie on the nodes of a cluster as others lie on further nodes: they share no link with
// them, so what one lot of them costs, every lot costs.
#pragma once

#include <vector>

#include "cluster/topology.h"
#include "sim/cost/collective/nccl.h"
#include "sim/cost/collective/network.h"

namespace sim {

struct RepeatedGroups {
    Groups first;  // of one lot: groups that share nodes, directly or by others between them
    std::vector<int>
        nodes_behind;  // how many nodes further on each of the other lots lies; empty: the only one
};
// All groups are one lot where lots differ.
RepeatedGroups find_repeated(const cluster::Cluster& cluster, Groups groups);

// What the first lot keeps busy, and the others with it; in the order of links.
std::vector<LinkShare> spread(const Network& network, const std::vector<LinkShare>& first,
                              const std::vector<int>& nodes_behind);

}  // namespace sim
