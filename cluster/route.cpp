// Routes of one node are found once and kept. A route between nodes is the sender's route to the fabric
// joined to the route from the fabric to the receiver.
//
// A path over NVLink alone comes first, however wide others are: it is what peer access and communication
// libraries take where there is one. Then the widest path comes first (PCIe before the socket interconnect);
// among the widest the one with the fewest links; among those the one whose links come first in the profile.
// Widest and shortest cannot be decided in one sweep (the narrowest link of a prefix
// says nothing about the narrowest of the whole), so each pair takes two: the greatest width, then a
// breadth-first search over links at least that wide.

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "cluster/topology.h"
#include "core/errors.h"
#include "core/index/integers.h"

namespace cluster {

namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();

struct Edge {
    int to = 0;
    int link = 0;
    bool forward = true;
};

class Graph {
public:
    enum class Links { all, nvlink };

    explicit Graph(const InstanceType& instance, Links links = Links::all)
        : instance_(instance), edges_(instance.vertices.size()) {
        for (const std::int32_t i : core::indices(instance.links)) {
            const Link& link = instance.links[i];
            if (links == Links::nvlink && link.kind != LinkKind::nvlink) continue;
            edges_[link.a].push_back({link.b, i, true});
            edges_[link.b].push_back({link.a, i, false});
        }
    }

    std::size_t size() const { return edges_.size(); }
    VertexKind kind(int vertex) const { return instance_.vertices[vertex].kind; }

    // Devices, network cards and the fabric end a path, they never carry one on.
    bool carries(int vertex) const {
        VertexKind k = kind(vertex);
        return k != VertexKind::device && k != VertexKind::nic && k != VertexKind::fabric;
    }

    std::vector<double> greatest_widths(int source) const {
        std::vector<double> width(size(), 0.0);
        std::vector<char> done(size(), 0);
        width[source] = infinite;
        for (;;) {
            int best = -1;
            for (std::size_t v = 0; v < size(); ++v)
                if (!done[v] && width[v] > 0 && (best < 0 || width[v] > width[best]))
                    best = static_cast<int>(v);
            if (best < 0) return width;
            done[best] = 1;
            if (best != source && !carries(best)) continue;
            for (const Edge& edge : edges_[best]) {
                double& w = width[edge.to];
                w = std::max(w, std::min(width[best], effective(edge)));
            }
        }
    }

    // Ways from a source with the fewest links, over links at least `width` wide.
    struct Tree {
        int source = 0;
        std::vector<int> previous;  // -1: not reached
        std::vector<Edge> arrived_by;

        std::optional<std::vector<DirectedLink>> way_to(int target) const {
            if (previous[target] < 0) return std::nullopt;
            std::vector<DirectedLink> links;
            for (int v = target; v != source; v = previous[v]) {
                const Edge& edge = arrived_by[v];
                links.push_back({0, edge.link, edge.forward});
            }
            std::reverse(links.begin(), links.end());
            return links;
        }
    };

    Tree shortest(int source, double width) const {
        Tree tree{source, std::vector<int>(size(), -1), std::vector<Edge>(size())};
        std::vector<int> queue = {source};
        tree.previous[source] = source;
        for (std::size_t head = 0; head < queue.size(); ++head) {
            int v = queue[head];
            if (v != source && !carries(v)) continue;
            for (const Edge& edge : edges_[v]) {
                if (tree.previous[edge.to] >= 0 || effective(edge) < width) continue;
                tree.previous[edge.to] = v;
                tree.arrived_by[edge.to] = edge;
                queue.push_back(edge.to);
            }
        }
        return tree;
    }

    // Number of links on the shortest route from source to every vertex; -1 when there is none.
    std::vector<int> distances(int source) const {
        std::vector<int> distance(size(), -1);
        std::vector<int> queue = {source};
        distance[source] = 0;
        for (std::size_t head = 0; head < queue.size(); ++head) {
            int v = queue[head];
            if (v != source && !carries(v)) continue;
            for (const Edge& edge : edges_[v])
                if (distance[edge.to] < 0) {
                    distance[edge.to] = distance[v] + 1;
                    queue.push_back(edge.to);
                }
        }
        return distance;
    }

private:
    double effective(const Edge& edge) const { return instance_.links[edge.link].effective().value; }

    const InstanceType& instance_;
    std::vector<std::vector<Edge>> edges_;
};

using Links = std::vector<DirectedLink>;

std::optional<Links> way(const Graph& graph, int from, int to) {
    if (from == to) return Links{};
    double width = graph.greatest_widths(from)[to];
    if (width <= 0) return std::nullopt;
    return graph.shortest(from, width).way_to(to);
}

int nearest(const Graph& graph, int from, VertexKind kind) {
    std::vector<int> distance = graph.distances(from);
    int best = -1;
    for (const std::int32_t v : core::indices(graph))
        if (graph.kind(v) == kind && distance[v] >= 0 && (best < 0 || distance[v] < distance[best])) best = v;
    return best;
}

// Of the cards equally near to a device, device i of those that see the same set takes card i modulo their
// number.
int nearest_card(const Graph& graph, int device) {
    std::vector<int> distance = graph.distances(device);
    std::vector<int> cards;
    int least = std::numeric_limits<int>::max();
    for (const std::int32_t v : core::indices(graph)) {
        if (graph.kind(v) != VertexKind::nic || distance[v] < 0) continue;
        if (distance[v] < least) {
            least = distance[v];
            cards.clear();
        }
        if (distance[v] == least) cards.push_back(v);
    }
    return cards.empty() ? -1 : cards[device % cards.size()];
}

Route make_route(const InstanceType& instance, const Links& links) {
    Route route;
    route.bandwidth = core::BytesPerSecond(infinite);
    for (const DirectedLink& directed : links) {
        const Link& link = instance.links[directed.link];
        route.links.push_back(directed);
        route.latency += link.latency;
        if (link.effective() < route.bandwidth) {
            route.bandwidth = link.effective();
            route.bottleneck = directed;
        }
    }
    return route;
}

// The route from a device to the fabric. Without GPUDirect the bytes pass through host memory.
std::optional<Links> way_out(const InstanceType& instance, const Graph& graph, int device) {
    int card = nearest_card(graph, device);
    int fabric = -1;
    for (const std::int32_t v : core::indices(graph))
        if (graph.kind(v) == VertexKind::fabric) fabric = v;
    if (card < 0 || fabric < 0) return std::nullopt;
    std::vector<int> stops = {device};
    int host = instance.has_gpudirect ? -1 : nearest(graph, device, VertexKind::host);
    if (host >= 0) stops.push_back(host);
    stops.push_back(card);
    stops.push_back(fabric);
    Links all;
    for (std::size_t i = 0; i + 1 < stops.size(); ++i) {
        std::optional<Links> part = way(graph, stops[i], stops[i + 1]);
        if (!part) return std::nullopt;
        all.insert(all.end(), part->begin(), part->end());
    }
    return all;
}

Links reversed_links(Links links) {
    std::reverse(links.begin(), links.end());
    for (DirectedLink& link : links) link.forward = !link.forward;
    return links;
}

void set_node(Route& route, std::int32_t node) {
    for (DirectedLink& link : route.links) link.node = node;
    route.bottleneck.node = node;
}

}  // namespace

class RouteTable {
public:
    std::size_t devices = 0;
    std::vector<Route> inside;   // devices x devices
    std::vector<Route> out, in;  // per device; empty when the instance has no network
    std::vector<Route> to_host;  // per device; empty when no host vertex is reached
};

namespace {

// Ways from one device to the others.
class Ways {
public:
    Ways(const Graph& graph, int from) : graph_(graph), from_(from), widths_(graph.greatest_widths(from)) {}

    std::optional<Links> to(int target) {
        const double width = widths_[target];
        if (width <= 0) return std::nullopt;
        if (!trees_.contains(width)) trees_.emplace(width, graph_.shortest(from_, width));
        return trees_.at(width).way_to(target);
    }

private:
    const Graph& graph_;
    int from_;
    std::vector<double> widths_;
    std::map<double, Graph::Tree> trees_;  // the devices seen from one are of few widths
};

// Nothing, with the reason, when the graph does not connect what it must.
std::shared_ptr<const RouteTable> search_routes(const InstanceType& instance, std::string& reason) {
    auto table = std::make_shared<RouteTable>();
    const Graph graph(instance), over_nvlink(instance, Graph::Links::nvlink);
    const auto name = [&](int vertex) { return instance.vertices[vertex].name; };
    table->devices = instance.devices;
    table->inside.resize(table->devices * table->devices);
    for (int from = 0; from < instance.devices; ++from) {
        Ways nvlink_ways(over_nvlink, from), ways(graph, from);
        for (int to = 0; to < instance.devices; ++to) {
            std::optional<Links> links = Links{};
            if (from != to) links = nvlink_ways.to(to);
            if (!links) links = ways.to(to);
            if (!links) {
                reason = "no way from " + name(from) + " to " + name(to);
                return nullptr;
            }
            if (links->size() > LinkPath::capacity / 2) {
                reason = "the way from " + name(from) + " to " + name(to) + " has " +
                         std::to_string(links->size()) + " links, more than " +
                         std::to_string(LinkPath::capacity / 2);
                return nullptr;
            }
            table->inside[from * table->devices + to] = make_route(instance, *links);
        }
    }
    bool has_fabric = std::any_of(instance.vertices.begin(), instance.vertices.end(),
                                  [](const Vertex& v) { return v.kind == VertexKind::fabric; });
    for (int device = 0; device < instance.devices; ++device) {
        int host = nearest(graph, device, VertexKind::host);
        std::optional<Links> down = host < 0 ? std::nullopt : way(graph, device, host);
        if (down && down->size() <= LinkPath::capacity) table->to_host.push_back(make_route(instance, *down));
        if (!has_fabric) continue;
        std::optional<Links> out = way_out(instance, graph, device);
        if (!out || out->size() > LinkPath::capacity / 2) {
            reason = out ? "the way from " + name(device) + " to the network has more than " +
                               std::to_string(LinkPath::capacity / 2) + " links"
                         : "no way from " + name(device) + " to a network card";
            return nullptr;
        }
        table->out.push_back(make_route(instance, *out));
        table->in.push_back(make_route(instance, reversed_links(*out)));
    }
    if (table->to_host.size() != table->devices) table->to_host.clear();
    return table;
}

std::shared_ptr<const RouteTable> table_of(const InstanceType& instance) {
    if (instance.routes) return instance.routes;
    std::string reason;
    std::shared_ptr<const RouteTable> table = search_routes(instance, reason);
    core::require(table != nullptr, "the devices of instance " + instance.name + " are connected: " + reason);
    return table;
}

}  // namespace

void LinkPath::push_back(DirectedLink link) {
    core::require(size_ < capacity, "a route has at most 16 links");
    links_[size_++] = link;
}

bool prepare_routes(InstanceType& instance, std::string* reason) {
    std::string why;
    instance.routes = search_routes(instance, why);
    if (reason) *reason = why;
    return instance.routes != nullptr;
}

Route route(const Cluster& cluster, DeviceId from, DeviceId to) {
    const InstanceType& instance = cluster.instance;
    core::require(from.index >= 0 && from.index < cluster.device_count() && to.index >= 0 &&
                      to.index < cluster.device_count(),
                  "a route joins devices of the cluster");
    std::shared_ptr<const RouteTable> made_now;
    const RouteTable* table = instance.routes.get();
    if (!table) {
        made_now = table_of(instance);
        table = made_now.get();
    }
    const std::size_t a = cluster.local_index(from), b = cluster.local_index(to);
    const int from_node = cluster.node_of(from), to_node = cluster.node_of(to);
    if (from_node == to_node) {
        Route inside = table->inside[a * table->devices + b];
        set_node(inside, from_node);
        return inside;
    }
    core::require(!table->out.empty(), "an instance without a network is used alone");
    Route between = table->out[a];
    set_node(between, from_node);
    const Route& in = table->in[b];
    for (DirectedLink link : in.links) {
        link.node = to_node;
        between.links.push_back(link);
    }
    if (in.bandwidth < between.bandwidth) {
        between.bandwidth = in.bandwidth;
        between.bottleneck = in.bottleneck;
        between.bottleneck.node = to_node;
    }
    between.latency = instance.network_latency;
    return between;
}

Route route_to_host(const Cluster& cluster, DeviceId device) {
    core::require(device.index >= 0 && device.index < cluster.device_count(),
                  "a route starts at a device of the cluster");
    std::shared_ptr<const RouteTable> table = table_of(cluster.instance);
    core::require(!table->to_host.empty(),
                  "every device of instance " + cluster.instance.name + " reaches a host");
    Route down = table->to_host[cluster.local_index(device)];
    set_node(down, cluster.node_of(device));
    return down;
}

Route reversed(const Route& route) {
    Route back = route;
    std::reverse(back.links.begin(), back.links.end());
    for (DirectedLink& link : back.links) link.forward = !link.forward;
    back.bottleneck.forward = !back.bottleneck.forward;
    return back;
}

core::BytesPerSecond effective_bandwidth(const Cluster& cluster, const DirectedLink& link) {
    core::require(link.link >= 0 && std::cmp_less(link.link, cluster.instance.links.size()),
                  "a directed link is one of its instance");
    return cluster.instance.links[link.link].effective();
}

}  // namespace cluster
