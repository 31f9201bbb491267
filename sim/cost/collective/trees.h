// Trees as NCCL lays them: a chain in every node, and two binary trees over the nodes that each carry half
// (Sanders, Speck and Traeff, Parallel Computing 35, 2009).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cluster/topology.h"

namespace sim {

struct TreeEdge {
    std::int32_t child = 0, parent = 0;  // global devices
    double share = 1.0;                  // of the payload, up and down again
};

// Chains start at another device of the node on every channel, so all network cards carry their part.
std::vector<TreeEdge> tree_edges(const cluster::Cluster& cluster, const std::vector<std::int32_t>& group);
// Edges between nodes only, from the same local rank of every node: sums of a node cross the network on them.
std::vector<TreeEdge> tree_edges_between_nodes(const cluster::Cluster& cluster,
                                               const std::vector<std::int32_t>& group);
// Parent in the first or second tree over `nodes` nodes; nothing for the root.
std::optional<int> parent_node(int nodes, int node, bool is_second_tree);

}  // namespace sim
