#include "sim/cost/collective/repeated_groups.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>

#include "core/index/integers.h"

namespace sim {

namespace {

// Nodes that groups join.
class JoinedNodes {
public:
    explicit JoinedNodes(int nodes) : above_(nodes) { std::iota(above_.begin(), above_.end(), 0); }

    // The lowest of those joined with it.
    int lowest(int node) {
        while (above_[node] != node) node = above_[node] = above_[above_[node]];
        return node;
    }
    void join(int a, int b) {
        const int low_of_a = lowest(a), low_of_b = lowest(b);
        above_[std::max(low_of_a, low_of_b)] = std::min(low_of_a, low_of_b);
    }

private:
    std::vector<int> above_;
};

}  // namespace

RepeatedGroups find_repeated(const cluster::Cluster& cluster, Groups groups) {
    const int devices = cluster.instance.devices;
    JoinedNodes joined(cluster.nodes);
    for (const std::vector<std::int32_t>& group : groups.devices)
        for (const std::int32_t device : group) joined.join(group.front() / devices, device / devices);
    // Of each lot, by its lowest node: its groups, in order.
    std::vector<std::vector<std::size_t>> lots(cluster.nodes);
    for (std::size_t g = 0; g < groups.devices.size(); ++g)
        lots[joined.lowest(groups.devices[g].front() / devices)].push_back(g);
    std::vector<int> lowest;
    for (const std::int32_t node : core::indices(lots))
        if (!lots[node].empty()) lowest.push_back(node);
    const std::vector<std::size_t>& first = lots[lowest.front()];
    for (const int node : lowest) {
        const std::int32_t further = (node - lowest.front()) * devices;
        const auto is_alike = [&](std::size_t a, std::size_t b) {
            return std::equal(groups.devices[a].begin(), groups.devices[a].end(), groups.devices[b].begin(),
                              groups.devices[b].end(),
                              [&](std::int32_t x, std::int32_t y) { return x + further == y; });
        };
        if (!std::equal(first.begin(), first.end(), lots[node].begin(), lots[node].end(), is_alike))
            return {std::move(groups), {}};
    }
    RepeatedGroups repeated;
    for (const std::size_t g : first) repeated.first.devices.push_back(std::move(groups.devices[g]));
    for (std::size_t lot = 1; lot < lowest.size(); ++lot)
        repeated.nodes_behind.push_back(lowest[lot] - lowest.front());
    return repeated;
}

std::vector<LinkShare> spread(const Network& network, const std::vector<LinkShare>& first,
                              const std::vector<int>& nodes_behind) {
    std::vector<LinkShare> all = first;
    all.reserve(first.size() * (nodes_behind.size() + 1));
    for (const int nodes : nodes_behind) {
        const std::vector<LinkShare> further = network.moved(first, nodes);
        all.insert(all.end(), further.begin(), further.end());
    }
    std::sort(all.begin(), all.end(), [](const LinkShare& a, const LinkShare& b) { return a.link < b.link; });
    return all;
}

}  // namespace sim
