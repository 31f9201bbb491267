#include "cluster/build_topology.h"

#include <algorithm>

#include "core/errors.h"
#include "core/index/integers.h"

namespace cluster {

int add_vertex(InstanceType& instance, std::string name, VertexKind kind) {
    instance.vertices.push_back({std::move(name), kind, 0});
    return core::count_of(instance.vertices) - 1;
}

void add_link(InstanceType& instance, int a, int b, const LinkSpec& spec, int count) {
    Link link;
    link.a = a;
    link.b = b;
    link.kind = spec.kind;
    link.count = count;
    link.bandwidth = spec.bandwidth * count;
    link.efficiency = spec.efficiency;
    link.latency = spec.latency;
    link.is_full_duplex = spec.is_full_duplex;
    link.type = spec.name;
    instance.links.push_back(std::move(link));
}

void add_fabric(InstanceType& instance, int cards) {
    std::erase_if(instance.links, [](const Link& link) { return link.kind == LinkKind::network; });
    int fabric = -1;
    std::vector<int> nics;
    for (const std::int32_t v : core::indices(instance.vertices)) {
        if (instance.vertices[v].kind == VertexKind::fabric) fabric = v;
        if (instance.vertices[v].kind == VertexKind::nic) nics.push_back(v);
    }
    if (nics.empty()) return;
    core::require(cards % core::count_of(nics) == 0, "network cards are dealt out equally");
    if (fabric < 0) fabric = add_vertex(instance, "fabric", VertexKind::fabric);
    for (int nic : nics) {
        Link link;
        link.a = nic;
        link.b = fabric;
        link.kind = LinkKind::network;
        link.count = cards / core::count_of(nics);
        link.bandwidth = instance.network_baseline / nics.size();
        link.efficiency = instance.network_efficiency;
        link.latency = instance.network_latency / 2.0;
        link.type = "network";
        instance.links.push_back(std::move(link));
    }
}

int network_cards(const InstanceType& instance) {
    int cards = 0;
    for (const Link& link : instance.links)
        if (link.kind == LinkKind::network) cards += link.count;
    return cards;
}

void assign_numa(InstanceType& instance) {
    std::vector<char> reached(instance.vertices.size(), 0);
    std::vector<int> queue;
    int host = 0;
    for (const std::int32_t v : core::indices(instance.vertices))
        if (instance.vertices[v].kind == VertexKind::host) {
            instance.vertices[v].numa = host++;
            reached[v] = 1;
            queue.push_back(v);
        }
    // Breadth first from all hosts at once; NVLinks say nothing about where a device is plugged in.
    for (std::size_t head = 0; head < queue.size(); ++head)
        for (const Link& link : instance.links) {
            if (link.kind == LinkKind::nvlink) continue;
            int other = link.a == queue[head] ? link.b : link.b == queue[head] ? link.a : -1;
            if (other < 0 || reached[other]) continue;
            reached[other] = 1;
            instance.vertices[other].numa = instance.vertices[queue[head]].numa;
            queue.push_back(other);
        }
    for (Vertex& vertex : instance.vertices)
        if (vertex.kind == VertexKind::fabric || vertex.kind == VertexKind::nvswitch) vertex.numa = 0;
}

void set_memory_links(InstanceType& instance, const TransportRate& rate) {
    for (Link& link : instance.links) {
        if (link.kind != LinkKind::memory) continue;
        link.bandwidth = rate.bandwidth;
        link.efficiency = 1;
        link.latency = rate.latency / 2.0;  // a route passes two of them
        link.is_full_duplex = true;
    }
    prepare_routes(instance);
}

int hybrid_cube_mesh_links(int a, int b) {
    static constexpr int links[8][8] = {{0, 1, 1, 2, 2, 0, 0, 0}, {1, 0, 2, 1, 0, 2, 0, 0},
                                        {1, 2, 0, 2, 0, 0, 1, 0}, {2, 1, 2, 0, 0, 0, 0, 1},
                                        {2, 0, 0, 0, 0, 1, 1, 2}, {0, 2, 0, 0, 1, 0, 2, 1},
                                        {0, 0, 1, 0, 1, 2, 0, 2}, {0, 0, 0, 1, 2, 1, 2, 0}};
    core::require(a >= 0 && a < 8 && b >= 0 && b < 8, "the mesh has eight devices");
    return links[a][b];
}

}  // namespace cluster
