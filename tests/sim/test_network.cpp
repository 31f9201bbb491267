#include <catch2/catch.hpp>
#include <set>

#include "sim/cost/collective/network.h"
#include "sim/cost/collective/rings.h"
#include "tests/cluster/instances.h"

namespace {

// Seconds a byte of the narrowest link between two devices alone on it.
double alone(const cluster::Cluster& cluster, int from, int to) {
    return 1 / cluster::route(cluster, cluster::DeviceId(from), cluster::DeviceId(to)).bandwidth.value;
}

}  // namespace

TEST_CASE("two flows over one network card take twice as long, over two cards as long as one") {
    const cluster::Cluster cluster = nodes_of("p4d.24xlarge", 2);
    sim::Network network(cluster);
    const std::vector<sim::Flow> one = {{0, 8}}, shared = {{0, 8}, {1, 9}}, apart = {{0, 8}, {2, 10}},
                                 opposite = {{0, 8}, {8, 0}};
    const double single = alone(cluster, 0, 8);
    // p4d: 100 Gbit/s a card at 85 %.
    REQUIRE(single == Approx(1 / (12.5e9 * 0.85)));
    REQUIRE(network.price(one).seconds_per_byte == Approx(single));
    REQUIRE(network.price(shared).seconds_per_byte == Approx(2 * single));
    REQUIRE(network.price(apart).seconds_per_byte == Approx(single));
    REQUIRE(network.price(opposite).seconds_per_byte == Approx(single));
}

TEST_CASE("eight devices through four cards get half a card each, whatever else the switch could carry") {
    const cluster::Cluster cluster = nodes_of("p4d.24xlarge", 2);
    sim::Network network(cluster);
    std::vector<sim::Flow> all;
    for (int device = 0; device < 8; ++device) all.push_back({device, 8 + device});
    REQUIRE(network.price(all).seconds_per_byte == Approx(2 / (12.5e9 * 0.85)));
}

TEST_CASE("a link counts the bytes of all flows that cross it, and prices leave no trace") {
    const cluster::Cluster cluster = nodes_of("p4d.24xlarge", 2);
    sim::Network network(cluster);
    const std::vector<sim::Flow> uneven = {{0, 8, 0.25}, {1, 9, 0.5}};
    const double first = network.price(uneven).seconds_per_byte;
    REQUIRE(first == Approx(0.75 * alone(cluster, 0, 8)));
    for (int repeat = 0; repeat < 3; ++repeat) REQUIRE(network.price(uneven).seconds_per_byte == first);
    // A copy inside a device's memory is read and written there: 1555 GB/s at 88 %.
    const std::vector<sim::Flow> inside = {{3, 3}};
    REQUIRE(network.price(inside).seconds_per_byte == Approx(2 / (1555e9 * 0.88)));
    REQUIRE(network.price({}).seconds_per_byte == 0);
}

TEST_CASE("the 8-V100 cube mesh carries three rings in both directions, each physical link once each way") {
    const cluster::Cluster cluster = nodes_of("p3.16xlarge", 1);
    const std::vector<sim::Ring> rings = sim::rings(cluster, {0, 1, 2, 3, 4, 5, 6, 7});
    REQUIRE(rings.size() == 6);
    double share = 0;
    for (const sim::Ring& ring : rings) {
        share += ring.share;
        REQUIRE(std::set<int>(ring.devices.begin(), ring.devices.end()).size() == 8);
    }
    REQUIRE(share == Approx(1.0));
    // Six links a device in each direction, all busy: a round of 1/8 of the payload takes what six links
    // need.
    sim::Network network(cluster);
    std::vector<sim::Flow> flows;
    for (const sim::Ring& ring : rings)
        for (std::size_t i = 0; i < 8; ++i)
            flows.push_back({ring.devices[i], ring.devices[(i + 1) % 8], ring.share});
    const double link = alone(cluster, 0, 1);  // one link joins 0 and 1
    REQUIRE(network.price(flows).seconds_per_byte == Approx(link / 6));
}

TEST_CASE("half of the cube mesh has two rings each way, a pair one") {
    const cluster::Cluster cluster = nodes_of("p3.16xlarge", 1);
    REQUIRE(sim::rings(cluster, {0, 1, 2, 3}).size() == 4);
    const std::vector<sim::Ring> pair = sim::rings(cluster, {0, 3});
    REQUIRE(pair.size() == 1);
    REQUIRE(pair[0].devices == std::vector<std::int32_t>{0, 3});
}

TEST_CASE(
    "rings over several nodes leave each node at every device once, so all network cards carry their part") {
    const cluster::Cluster cluster = nodes_of("p4d.24xlarge", 4);
    std::vector<std::int32_t> group;
    for (int device = 0; device < 32; ++device) group.push_back(device);
    const std::vector<sim::Ring> rings = sim::rings(cluster, group);
    REQUIRE(rings.size() == 8);
    std::multiset<std::int32_t> leaving;
    std::vector<sim::Flow> flows;
    for (const sim::Ring& ring : rings)
        for (std::size_t i = 0; i < ring.devices.size(); ++i) {
            const std::int32_t from = ring.devices[i], to = ring.devices[(i + 1) % ring.devices.size()];
            if (from / 8 != to / 8) leaving.insert(from);
            flows.push_back({from, to, ring.share});
        }
    for (int device = 0; device < 32; ++device) REQUIRE(leaving.count(device) == 1);
    // The whole payload leaves a node over four cards.
    sim::Network network(cluster);
    REQUIRE(network.price(flows).seconds_per_byte == Approx(1 / (4 * 12.5e9 * 0.85)));
}
