#include "cluster/node.h"

#include <algorithm>
#include <map>

namespace cluster {

int ranks_of_a_node(const Cluster& cluster) {
    const int used = cluster.ranks_per_node, devices = std::max(1, cluster.instance.devices);
    return used > 0 ? std::min(used, devices) : devices;
}

int node_of_rank(const Cluster& cluster, int rank) { return rank / ranks_of_a_node(cluster) % cluster.nodes; }

int most_ranks_of_a_node(const Cluster& cluster, int ranks) {
    const int in_one_round = ranks_of_a_node(cluster), round = in_one_round * cluster.nodes;
    return ranks / round * in_one_round + std::min(in_one_round, ranks % round);
}

int most_devices_of_a_node(const Cluster& cluster, const std::vector<std::int32_t>& devices) {
    std::map<int, int> count;
    int most = 1;
    for (const std::int32_t device : devices)
        most = std::max(most, ++count[cluster.node_of(DeviceId(device))]);
    return most;
}

bool has_network(const InstanceType& instance) { return instance.network_bandwidth.value > 0; }

}  // namespace cluster
