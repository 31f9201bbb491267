#include <cmath>
#include <thread>

#include "cluster/build_topology.h"
#include "tests/cluster/instances.h"

using cluster::Cluster;
using cluster::DeviceId;
using cluster::DirectedLink;
using cluster::LinkKind;
using cluster::Route;
using cluster::VertexKind;

namespace {

Route between(const Cluster& cluster, int from, int to) {
    return cluster::route(cluster, DeviceId(from), DeviceId(to));
}

const cluster::Link& link_of(const Cluster& cluster, const DirectedLink& directed) {
    return cluster.instance.links[static_cast<std::size_t>(directed.link)];
}

// Names of the vertices that a route visits, "gpu0 pcie0 nic0 fabric nic0 pcie0 gpu0".
std::string path_of(const Cluster& cluster, const Route& route) {
    std::string text;
    for (const DirectedLink& directed : route.links) {
        const cluster::Link& link = link_of(cluster, directed);
        const auto name = [&](int v) { return cluster.instance.vertices[static_cast<std::size_t>(v)].name; };
        if (text.empty()) text = name(directed.forward ? link.a : link.b);
        text += " " + name(directed.forward ? link.b : link.a);
    }
    return text;
}

// Links between two V100s as `nvidia-smi topo -m` prints them (hardware facts, section 1.1), typed here a
// second time on purpose.
constexpr int mesh[8][8] = {{0, 1, 1, 2, 2, 0, 0, 0}, {1, 0, 2, 1, 0, 2, 0, 0}, {1, 2, 0, 2, 0, 0, 1, 0},
                            {2, 1, 2, 0, 0, 0, 0, 1}, {2, 0, 0, 0, 0, 1, 1, 2}, {0, 2, 0, 0, 1, 0, 2, 1},
                            {0, 0, 1, 0, 1, 2, 0, 2}, {0, 0, 0, 1, 2, 1, 2, 0}};

int nvlinks_between(const cluster::InstanceType& instance, int a, int b) {
    int count = 0;
    for (const cluster::Link& link : instance.links)
        if (link.kind == LinkKind::nvlink && ((link.a == a && link.b == b) || (link.a == b && link.b == a)))
            count += link.count;
    return count;
}

}  // namespace

TEST_CASE("every V100 of the hybrid cube mesh has six NVLinks, in pairs of none, one or two") {
    for (const char* name : {"p3.16xlarge", "p3dn.24xlarge"}) {
        cluster::InstanceType instance = instance_named(name);
        for (int a = 0; a < 8; ++a) {
            int sum = 0;
            for (int b = 0; b < 8; ++b) {
                CHECK(nvlinks_between(instance, a, b) == mesh[a][b]);
                CHECK(cluster::hybrid_cube_mesh_links(a, b) == mesh[a][b]);
                sum += mesh[a][b];
            }
            CHECK(sum == 6);
        }
    }
}

TEST_CASE("a ring over all eight V100s exists that uses double links only") {
    // CUDA_VISIBLE_DEVICES=0,3,2,1,5,6,7,4 in aws-ofi-nccl issue 33.
    const int ring[] = {0, 3, 2, 1, 5, 6, 7, 4};
    Cluster one = nodes_of("p3dn.24xlarge", 1);
    for (int i = 0; i < 8; ++i) {
        CHECK(nvlinks_between(one.instance, ring[i], ring[(i + 1) % 8]) == 2);
        CHECK(between(one, ring[i], ring[(i + 1) % 8]).bandwidth == core::gigabytes_per_second(50) * 0.85);
    }
}

TEST_CASE(
    "V100s with NVLinks between them use those; pairs without go over PCIe and the sockets, never through a "
    "third GPU") {
    Cluster one = nodes_of("p3.16xlarge", 1);
    for (int a = 0; a < 8; ++a)
        for (int b = 0; b < 8; ++b) {
            if (a == b) continue;
            Route route = between(one, a, b);
            INFO(path_of(one, route));
            for (std::size_t i = 0; i + 1 < route.links.size(); ++i) {
                const cluster::Link& link = link_of(one, route.links[i]);
                int reached = route.links[i].forward ? link.b : link.a;
                CHECK(one.instance.vertices[static_cast<std::size_t>(reached)].kind != VertexKind::device);
            }
            if (mesh[a][b] > 0) {
                CHECK(route.links.size() == 1);
                CHECK(route.bandwidth == core::gigabytes_per_second(25.0 * mesh[a][b]) * 0.85);
            } else {
                CHECK(route.bandwidth ==
                      core::gigabytes_per_second(10));  // the tier "PCIe and CPU" of the MXNet wiki
                CHECK(link_of(one, route.bottleneck).kind == LinkKind::host_interconnect);
            }
        }
    CHECK(path_of(one, between(one, 0, 5)) == "gpu0 pcie0 numa0 numa1 pcie2 gpu5");
    CHECK(path_of(one, between(one, 0, 1)) == "gpu0 gpu1");
}

TEST_CASE("two A100s of a node meet in the NVSwitch at twelve links each") {
    Cluster one = nodes_of("p4d.24xlarge", 1);
    Route route = between(one, 0, 7);
    CHECK(path_of(one, route) == "gpu0 nvswitch gpu7");
    CHECK(route.bandwidth == core::gigabytes_per_second(300) * 0.913);  // 12 x 25 GB/s; peer copies reach 274
    CHECK(route.latency.value == Approx(1.9e-6));
}

TEST_CASE("the 72 GPUs of an UltraServer meet in one NVLink domain, whatever their host") {
    Cluster one = nodes_of("u-p6e-gb200x72", 1);
    CHECK(path_of(one, between(one, 0, 71)) == "gpu0 nvswitch gpu71");
    // Eighteen links of 50 GB/s; peer copies reach 746 of 900.
    CHECK(between(one, 0, 71).bandwidth == core::gigabytes_per_second(900) * 0.829);
    CHECK(path_of(one, cluster::route_to_host(one, DeviceId(71))) == "gpu71 grace35");
    // One tray alone knows nothing of its neighbours: two cards of 400 Gbit/s a GPU lie between them.
    Cluster trays = nodes_of("p6e-gb200.36xlarge", 2);
    CHECK(path_of(trays, between(trays, 0, 1)) == "gpu0 nvswitch gpu1");
    CHECK(between(trays, 0, 4).bandwidth == core::gigabytes_per_second(100) * 0.91);
}

TEST_CASE("T4s of g4dn.12xlarge meet in the host") {
    Cluster one = nodes_of("g4dn.12xlarge", 1);
    Route route = between(one, 1, 3);
    CHECK(path_of(one, route) == "gpu1 numa0 gpu3");
    CHECK(route.bandwidth == core::gigabytes_per_second(15.75) * 0.784);
    Cluster metal = nodes_of("g4dn.metal", 1);
    CHECK(path_of(metal, between(metal, 0, 4)) == "gpu0 numa0 numa1 gpu4");
    CHECK(between(metal, 0, 4).bandwidth == core::gigabytes_per_second(10));
}

TEST_CASE("two GPUs of p4d share one network card behind their PCIe switch, and no other pair does") {
    Cluster two = nodes_of("p4d.24xlarge", 2);
    const auto card = [&](int device) {
        Route route = between(two, device, device + 8);
        for (const DirectedLink& directed : route.links)
            if (link_of(two, directed).kind == LinkKind::network) return directed;
        return DirectedLink{-1, -1, true};
    };
    CHECK(path_of(two, between(two, 0, 8)) == "gpu0 pcie0 nic0 fabric nic0 pcie0 gpu0");
    CHECK(path_of(two, between(two, 2, 15)) == "gpu2 pcie1 nic1 fabric nic3 pcie3 gpu7");
    for (int a = 0; a < 8; ++a)
        for (int b = 0; b < 8; ++b) CHECK((card(a) == card(b)) == (a / 2 == b / 2));
    Route route = between(two, 0, 8);
    // One card: 100 Gbit/s = 12.5 GB/s, 85 % of it (340 of 400 Gbit/s); PCIe 3 x16 would carry 12.35.
    CHECK(route.bandwidth == core::gigabytes_per_second(12.5) * 0.85);
    CHECK(link_of(two, route.bottleneck).kind == LinkKind::network);
    CHECK(route.latency == core::microseconds(75));
}

TEST_CASE("a GPU of p5 drives four cards at once") {
    Cluster two = nodes_of("p5.48xlarge", 2);
    CHECK(cluster::network_cards(two.instance) == 32);
    CHECK(path_of(two, between(two, 3, 11)) == "gpu3 pcie3 nic3 fabric nic3 pcie3 gpu3");
    CHECK(between(two, 3, 11).bandwidth == core::gigabytes_per_second(50) * 0.91);
}

TEST_CASE("without GPUDirect the way to the network crosses the host") {
    Cluster two = nodes_of("p3dn.24xlarge", 2);
    CHECK(path_of(two, between(two, 0, 8)) == "gpu0 pcie0 numa0 nic0 fabric nic0 numa0 pcie0 gpu0");
    CHECK(path_of(two, between(two, 7, 8)) == "gpu7 pcie3 numa1 numa0 nic0 fabric nic0 numa0 pcie0 gpu0");
    Cluster staged = nodes_of("p4d.24xlarge", 2);
    staged.instance.has_gpudirect = false;
    REQUIRE(cluster::prepare_routes(staged.instance));
    CHECK(path_of(staged, between(staged, 0, 8)) ==
          "gpu0 pcie0 numa0 pcie0 nic0 fabric nic0 pcie0 numa0 pcie0 gpu0");
}

TEST_CASE("a route back is the route there, turned around, in every pair of every instance") {
    for (const std::string& name : cluster::instance_names()) {
        Cluster two = nodes_of(name, cluster::network_cards(instance_named(name)) > 0 ? 2 : 1);
        for (int a = 0; a < two.device_count(); ++a)
            for (int b = 0; b < two.device_count(); ++b) {
                Route there = between(two, a, b), back = between(two, b, a);
                REQUIRE(there.bandwidth == back.bandwidth);
                REQUIRE(there.latency.value == Approx(back.latency.value).margin(1e-15));
                if (a == b) {
                    REQUIRE(there.links.empty());
                    REQUIRE(there.latency.value == 0);
                    REQUIRE(std::isinf(there.bandwidth.value));
                    continue;
                }
                double narrowest = HUGE_VAL;
                for (const DirectedLink& link : there.links)
                    narrowest = std::min(narrowest, cluster::effective_bandwidth(two, link).value);
                REQUIRE(there.bandwidth.value == narrowest);
                REQUIRE(cluster::effective_bandwidth(two, there.bottleneck) == there.bandwidth);
                // A path leads on from where it arrived.
                for (std::size_t i = 0; i + 1 < there.links.size(); ++i) {
                    const cluster::Link &first = link_of(two, there.links[i]),
                                        &second = link_of(two, there.links[i + 1]);
                    REQUIRE((there.links[i].forward ? first.b : first.a) ==
                            (there.links[i + 1].forward ? second.a : second.b));
                }
            }
    }
}

TEST_CASE("no other route inside a node is wider than the one found") {
    // Every simple path of a small node, tried by hand of a slow search.
    for (const char* name : {"p3.8xlarge", "g4dn.12xlarge"}) {
        Cluster one = nodes_of(name, 1);
        const auto& instance = one.instance;
        for (int from = 0; from < instance.devices; ++from)
            for (int to = 0; to < instance.devices; ++to) {
                if (from == to) continue;
                double widest = 0;
                std::size_t fewest = 99;
                std::vector<char> visited(instance.vertices.size(), 0);
                auto walk = [&](auto&& self, int at, double width, std::size_t links) -> void {
                    if (at == to) {
                        if (width > widest || (width == widest && links < fewest)) {
                            widest = width;
                            fewest = links;
                        }
                        return;
                    }
                    VertexKind kind = instance.vertices[static_cast<std::size_t>(at)].kind;
                    if (at != from &&
                        (kind == VertexKind::device || kind == VertexKind::nic || kind == VertexKind::fabric))
                        return;
                    visited[static_cast<std::size_t>(at)] = 1;
                    for (const cluster::Link& link : instance.links) {
                        int other = link.a == at ? link.b : link.b == at ? link.a : -1;
                        if (other >= 0 && !visited[static_cast<std::size_t>(other)])
                            self(self, other, std::min(width, link.effective().value), links + 1);
                    }
                    visited[static_cast<std::size_t>(at)] = 0;
                };
                walk(walk, from, HUGE_VAL, 0);
                Route route = between(one, from, to);
                CHECK(route.bandwidth.value == widest);
                CHECK(route.links.size() == fewest);
            }
    }
}

TEST_CASE("a route to the host ends there, and back is the other direction of the same links") {
    Cluster two = nodes_of("p4d.24xlarge", 2);
    Route down = cluster::route_to_host(two, DeviceId(13));
    CHECK(path_of(two, down) == "gpu5 pcie2 numa1");
    for (const DirectedLink& link : down.links) CHECK(link.node == 1);
    CHECK(path_of(two, cluster::reversed(down)) == "numa1 pcie2 gpu5");
}

TEST_CASE("routes kept and routes searched anew are the same") {
    for (const std::string& name : cluster::instance_names()) {
        Cluster kept = nodes_of(name, cluster::network_cards(instance_named(name)) > 0 ? 2 : 1);
        Cluster searched = kept;
        searched.instance.routes = nullptr;
        for (int to = 0; to < kept.device_count(); ++to)
            CHECK(path_of(kept, between(kept, 0, to)) == path_of(searched, between(searched, 0, to)));
    }
}

TEST_CASE("many threads may ask for routes at once") {
    Cluster cluster = nodes_of("p4d.24xlarge", 8);
    std::vector<double> sums(4, 0);
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < sums.size(); ++t)
        threads.emplace_back([&, t] {
            for (int a = 0; a < 64; ++a)
                for (int b = 0; b < 64; ++b)
                    if (a != b) sums[t] += between(cluster, a, b).bandwidth.value;
        });
    for (std::thread& thread : threads) thread.join();
    for (double sum : sums) CHECK(sum == sums[0]);
}
