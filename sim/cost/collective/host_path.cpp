#include "sim/cost/collective/host_path.h"

#include <algorithm>
#include <map>

#include "sim/cost/collective/rings.h"

namespace sim {

namespace {

// fi_pingpong over EFA from host memory: 24 to 38 us for 256 B to 1 kB (ComputeCanada/puppet-magic_castle, PR
// 331).
constexpr core::Seconds efa_host_message = core::microseconds(30);

}  // namespace

std::vector<LinkShare> host_copies(const LibraryContext& context, const Groups& groups, double to_host,
                                   double to_device) {
    std::vector<LoadedRoute> routes;
    for (const std::vector<std::int32_t>& group : groups.devices)
        for (std::int32_t device : group) {
            const cluster::Route down = cluster::route_to_host(context.cluster, cluster::DeviceId(device));
            routes.push_back({down, to_host});
            routes.push_back({cluster::reversed(down), to_device});
        }
    return context.copy_network.links(routes);
}

std::vector<LinkShare> host_messages(const LibraryContext& context, const Groups& groups, double share) {
    const cluster::InstanceType& instance = context.cluster.instance;
    std::vector<LoadedRoute> routes;
    for (const std::vector<std::int32_t>& group : groups.devices) {
        const std::vector<std::vector<std::int32_t>> nodes = orders_in_nodes(context.cluster, group);
        for (std::size_t a = 0; a < nodes.size(); ++a)
            for (std::size_t b = 0; b < nodes.size(); ++b) {
                if (a == b) continue;
                const std::size_t lanes = std::min(nodes[a].size(), nodes[b].size());
                for (std::size_t lane = 0; lane < lanes; ++lane) {
                    const cluster::Route whole =
                        cluster::route(context.cluster, cluster::DeviceId(nodes[a][lane]),
                                       cluster::DeviceId(nodes[b][lane]));
                    cluster::Route cards;
                    for (const cluster::DirectedLink& link : whole.links)
                        if (instance.links[link.link].kind == cluster::LinkKind::network)
                            cards.links.push_back(link);
                    routes.push_back({cards, share / static_cast<double>(lanes)});
                }
            }
    }
    return context.copy_network.links(routes);
}

core::Seconds host_message_time(const LibraryContext& context) {
    const core::Seconds step = context.copy_network.step();
    return context.cluster.instance.network_name == "efa" ? std::min(step, efa_host_message) : step;
}

core::BytesPerSecond host_sum_rate() {
    // Six DDR4-2666 channels, as Intel states for the Xeons of p3dn and p4d (8175M, 8275CL).
    constexpr double sockets = 2, socket_gbs = 128;
    constexpr double reached = 0.7;  // by streams; assumed
    return core::gigabytes_per_second(sockets * socket_gbs * reached);
}

double devices_on_a_node(const cluster::Cluster& cluster, const Groups& groups) {
    std::map<int, int> count;
    int most = 0;
    for (const std::vector<std::int32_t>& group : groups.devices)
        for (const std::int32_t device : group)
            most = std::max(most, ++count[cluster.node_of(cluster::DeviceId(device))]);
    return most;
}

std::vector<LinkShare> together(const std::vector<LinkShare>& a, const std::vector<LinkShare>& b) {
    std::map<std::int32_t, double> busy;
    for (const std::vector<LinkShare>* part : {&a, &b})
        for (const LinkShare& link : *part) busy[link.link] += link.busy;
    std::vector<LinkShare> result;
    for (const auto& [link, seconds] : busy) result.push_back({link, seconds});
    return result;
}

double busiest(const std::vector<LinkShare>& links) {
    double most = 0;
    for (const LinkShare& link : links) most = std::max(most, link.busy);
    return most;
}

}  // namespace sim
