#include "sim/cost/collective/trees.h"

#include <algorithm>

#include "core/index/integers.h"
#include "sim/cost/collective/rings.h"

namespace sim {

namespace {

// A binary tree over 0 to nodes - 1 in which every second node is a leaf: the parent of a node flips its
// lowest bit up (NCCL 2.30.7, src/graph/trees.cc).
std::optional<int> parent_in_tree(int nodes, int node) {
    if (node == 0) return std::nullopt;
    int bit = 1;
    while ((node & bit) == 0) bit <<= 1;
    const int up = (node ^ bit) | (bit << 1);
    return up < nodes ? up : node ^ bit;
}

void add_between(const std::vector<std::vector<std::int32_t>>& nodes, std::size_t channels,
                 std::vector<TreeEdge>& edges) {
    const int count = core::count_of(nodes);
    for (std::size_t c = 0; c < channels; ++c)
        for (bool is_second : {false, true})
            for (int n = 0; n < count; ++n) {
                const std::optional<int> parent = parent_node(count, n, is_second);
                if (!parent) continue;
                const std::vector<std::int32_t>&own = nodes[n], &other = nodes[*parent];
                edges.push_back(
                    {own[c % own.size()], other[c % other.size()], 0.5 / static_cast<double>(channels)});
            }
}

std::size_t least_size(const std::vector<std::vector<std::int32_t>>& nodes) {
    std::size_t least = nodes.front().size();
    for (const std::vector<std::int32_t>& devices : nodes) least = std::min(least, devices.size());
    return least;
}

}  // namespace

std::optional<int> parent_node(int nodes, int node, bool is_second_tree) {
    if (!is_second_tree) return parent_in_tree(nodes, node);
    // The second tree is the first with leaves and inner nodes exchanged: mirrored for an even number of
    // nodes, shifted by one for an odd number.
    if (nodes % 2 == 0) {
        const std::optional<int> parent = parent_in_tree(nodes, nodes - 1 - node);
        return parent ? std::optional(nodes - 1 - *parent) : std::nullopt;
    }
    const std::optional<int> parent = parent_in_tree(nodes, (node + nodes - 1) % nodes);
    return parent ? std::optional((*parent + 1) % nodes) : std::nullopt;
}

std::vector<TreeEdge> tree_edges_between_nodes(const cluster::Cluster& cluster,
                                               const std::vector<std::int32_t>& group) {
    const std::vector<std::vector<std::int32_t>> nodes = orders_in_nodes(cluster, group);
    std::vector<TreeEdge> edges;
    add_between(nodes, least_size(nodes), edges);
    return edges;
}

std::vector<TreeEdge> tree_edges(const cluster::Cluster& cluster, const std::vector<std::int32_t>& group) {
    const std::vector<std::vector<std::int32_t>> nodes = orders_in_nodes(cluster, group);
    const std::size_t channels = least_size(nodes);
    std::vector<TreeEdge> edges;
    for (std::size_t c = 0; c < channels; ++c)
        for (const std::vector<std::int32_t>& order : nodes)
            for (std::size_t i = 0; i + 1 < order.size(); ++i)
                edges.push_back({order[(c + i + 1) % order.size()], order[(c + i) % order.size()],
                                 1.0 / static_cast<double>(channels)});
    add_between(nodes, channels, edges);
    return edges;
}

}  // namespace sim
