#include <catch2/catch.hpp>

#include <algorithm>
#include <map>

#include "cluster/node.h"

namespace {

cluster::Cluster cluster_of(int nodes, int devices, int ranks_per_node = 0) {
    cluster::Cluster cluster;
    cluster.instance.devices = devices;
    cluster.nodes = nodes;
    cluster.ranks_per_node = ranks_per_node;
    return cluster;
}

}  // namespace

TEST_CASE("ranks fill one node after the other: ten on two nodes of eight devices are eight and two") {
    const cluster::Cluster cluster = cluster_of(2, 8);
    CHECK(cluster::node_of_rank(cluster, 7) == 0);
    CHECK(cluster::node_of_rank(cluster, 8) == 1);
    CHECK(cluster::most_ranks_of_a_node(cluster, 10) == 8);
    CHECK(cluster::most_ranks_of_a_node(cluster, 5) == 5);
    CHECK(cluster::most_ranks_of_a_node(cluster, 20) ==
          8 + 4);  // 16 in the first round, the other 4 start again at the first node
}

TEST_CASE("where a cluster says so, the last devices of every node are idle") {
    const cluster::Cluster cluster = cluster_of(2, 8, 4);
    CHECK(cluster::ranks_of_a_node(cluster) == 4);
    CHECK(cluster::node_of_rank(cluster, 4) == 1);
    CHECK(cluster::most_ranks_of_a_node(cluster, 8) == 4);
    CHECK(cluster::ranks_of_a_node(cluster_of(2, 8, 9)) == 8);
}

TEST_CASE("the most ranks of a node are those of a count, rank by rank") {
    for (const int nodes : {1, 2, 3})
        for (const int devices : {1, 2, 8})
            for (const int used : {0, 1, 2})
                for (int ranks = 1; ranks <= 40; ++ranks) {
                    const cluster::Cluster cluster = cluster_of(nodes, devices, used);
                    std::map<int, int> count;
                    int most = 0;
                    for (int rank = 0; rank < ranks; ++rank)
                        most = std::max(most, ++count[cluster::node_of_rank(cluster, rank)]);
                    CAPTURE(nodes, devices, used, ranks);
                    CHECK(cluster::most_ranks_of_a_node(cluster, ranks) == most);
                }
}
