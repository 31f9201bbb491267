#include <catch2/catch.hpp>

#include <algorithm>
#include <cstddef>
#include <random>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "core/index/integers.h"
#include "sim/cost/collective/collective.h"
#include "sim/cost/collective/known_candidates.h"
#include "sim/cost/collective/nccl.h"
#include "sim/cost/collective/network.h"
#include "sim/cost/collective/repeated_groups.h"
#include "sim/cost/framework/framework_lookup.h"
#include "tests/cluster/instances.h"

namespace {

using schedule::CollectiveKind;
using schedule::GroupKind;

schedule::Plan ring_plan(int data, int tensor, int pipeline) {
    schedule::Plan plan;
    plan.layout = {data, tensor, pipeline, "PDT"};
    plan.collective = "ring";
    return plan;
}

// Seconds a byte of large payloads, on the links alone: without the steps' latency and the handing on of
// slices.
double slope(sim::CommunicationCost& cost, CollectiveKind kind, GroupKind group) {
    const core::Bytes bytes(3e9);
    return (time_of(cost.choice(kind, group, bytes, 0), bytes).streaming / bytes.value).value;
}

constexpr double nvlink = 12 * 20e9;  // A100: twelve links, of which a channel of NCCL moves 20 GB/s each
constexpr double network_card = 12.5e9 * 0.85;  // EFA: 100 Gbit/s, 85 % achieved

// Closed forms are of links at their stated rates, whatever the number of nodes.
sim::CostConstants without_congestion() {
    sim::CostConstants constants;
    constants.decay_per_doubling = 0;
    return constants;
}

}  // namespace

TEST_CASE(
    "an uncontended ring moves 2(n-1)/n of the payload for an all-reduce, half of it for gathering or "
    "scattering") {
    const cluster::Cluster cluster = nodes_of("p4d.24xlarge", 1);
    for (int n : {2, 4, 8}) {
        const schedule::Plan plan = ring_plan(n, 1, 1);
        sim::CommunicationCost cost(plan, cluster, without_congestion());
        const double share = (n - 1.0) / n;
        REQUIRE(slope(cost, CollectiveKind::all_reduce, GroupKind::data) == Approx(2 * share / nvlink));
        REQUIRE(slope(cost, CollectiveKind::all_gather, GroupKind::data) == Approx(share / nvlink));
        REQUIRE(slope(cost, CollectiveKind::reduce_scatter, GroupKind::data) == Approx(share / nvlink));
    }
}

TEST_CASE("a group of one communicates nothing") {
    const cluster::Cluster cluster = nodes_of("p4d.24xlarge", 1);
    const schedule::Plan plan = ring_plan(1, 8, 1);
    sim::CommunicationCost cost(plan, cluster, without_congestion());
    REQUIRE(cost.collective(CollectiveKind::all_reduce, GroupKind::data, core::gigabytes(1), 0).value == 0);
    REQUIRE(cost.collective(CollectiveKind::all_reduce, GroupKind::tensor, core::gigabytes(1), 0).value > 0);
}

TEST_CASE("eight data-parallel rings over four network cards get half a card each") {
    const cluster::Cluster cluster = nodes_of("p4d.24xlarge", 4);
    const schedule::Plan plan = ring_plan(4, 8, 1);
    sim::CommunicationCost cost(plan, cluster, without_congestion());
    REQUIRE(slope(cost, CollectiveKind::all_reduce, GroupKind::data) ==
            Approx(2 * 3.0 / 4 / (network_card / 2)));
}

TEST_CASE("one ring over all devices of several nodes uses all four cards") {
    const cluster::Cluster cluster = nodes_of("p4d.24xlarge", 4);
    const schedule::Plan plan = ring_plan(32, 1, 1);
    sim::CommunicationCost cost(plan, cluster, without_congestion());
    REQUIRE(slope(cost, CollectiveKind::all_reduce, GroupKind::data) ==
            Approx(2 * 31.0 / 32 / (4 * network_card)));
}

TEST_CASE("an all-reduce on eight V100 of the cube mesh uses six links a device") {
    const cluster::Cluster cluster = nodes_of("p3.16xlarge", 1);
    const schedule::Plan plan = ring_plan(8, 1, 1);
    sim::CommunicationCost cost(plan, cluster, without_congestion());
    // 120 GB/s; Aceso's profiles reach 124 MiB/ms = 130 GB/s at 3840 MiB (microsoft/SuperScaler).
    REQUIRE(slope(cost, CollectiveKind::all_reduce, GroupKind::data) == Approx(2 * 7.0 / 8 / (6 * 20e9)));
}

TEST_CASE(
    "a pipeline transfer of eight tensor ranks through four cards takes twice what one rank a card would") {
    const cluster::Cluster cluster = nodes_of("p4d.24xlarge", 2);
    const schedule::Plan plan = ring_plan(1, 8, 2);
    sim::CommunicationCost cost(plan, cluster, without_congestion());
    const double slope =
        (cost.transfer(0, 1, core::Bytes(3e9)) - cost.transfer(0, 1, core::Bytes(1e9))).value / 2e9;
    REQUIRE(slope == Approx(2 / network_card));
}

TEST_CASE(
    "Megatron-LM's tensor-parallel ranks each send an eighth and gather the rest, but with sequence "
    "parallelism the share they have") {
    schedule::Plan plan = ring_plan(1, 8, 2);
    plan.framework = "megatron-lm";
    const cluster::Cluster cluster = nodes_of("p4d.24xlarge", 2);
    const core::Bytes bytes = core::mebibytes(64);
    const auto payload = schedule::PayloadKind::activation;
    sim::CommunicationCost whole(plan, cluster);
    CHECK(whole.sent(bytes, payload) == bytes / 8.0);
    CHECK(whole.assembly(1, bytes, payload) ==
          whole.collective(schedule::CollectiveKind::all_gather, schedule::GroupKind::tensor, bytes, 1));
    CHECK(whole.assembly(1, bytes, payload) > core::Seconds(0));
    plan.sequence_parallel = true;
    sim::CommunicationCost shares(plan, cluster);
    CHECK(shares.sent(bytes, payload) == bytes);
    CHECK(shares.assembly(1, bytes, payload) == core::Seconds(0));
}

TEST_CASE("automatic choice is never slower than an algorithm of the library by name") {
    const cluster::Cluster cluster = nodes_of("p4d.24xlarge", 4);
    schedule::Plan automatic = ring_plan(32, 1, 1);
    automatic.collective = "auto";
    sim::CommunicationCost best(automatic, cluster, without_congestion());
    for (const char* name : {"ring", "tree"}) {
        schedule::Plan plan = automatic;
        plan.collective = name;
        sim::CommunicationCost named(plan, cluster, without_congestion());
        for (double bytes : {4.0, 1e3, 1e5, 1e7, 1e9})
            REQUIRE(best.collective(CollectiveKind::all_reduce, GroupKind::data, core::Bytes(bytes), 0) <=
                    named.collective(CollectiveKind::all_reduce, GroupKind::data, core::Bytes(bytes), 0));
    }
}

TEST_CASE("a thousand ranks are priced within a second") {
    const cluster::Cluster cluster = nodes_of("p4d.24xlarge", 128);
    schedule::Plan plan = ring_plan(1024, 1, 1);
    sim::CommunicationCost cost(plan, cluster, without_congestion());
    // 128 nodes: nearly the whole payload crosses each node's four cards twice.
    REQUIRE(slope(cost, CollectiveKind::all_reduce, GroupKind::data) ==
            Approx(2 * 1023.0 / 1024 / (4 * network_card)));
}

TEST_CASE("without NCCL a ring of 600 ranks costs what its rounds do, as one of 512 does") {
    const cluster::Cluster cluster = nodes_of("local-cpu", 1);
    for (int n : {512, 600})
        for (CollectiveKind kind :
             {CollectiveKind::all_reduce, CollectiveKind::all_gather, CollectiveKind::reduce_scatter,
              CollectiveKind::broadcast, CollectiveKind::all_to_all, CollectiveKind::rotate}) {
            const schedule::Plan plan = ring_plan(n, 1, 1);
            sim::CommunicationCost cost(plan, cluster);
            // Round by round, ranks dealt to the devices in turn.
            sim::Network network(cluster);
            const schedule::Rounds rounds = schedule::ring_algorithm().rounds(kind, n, 0);
            sim::LinearCost total;
            for (const std::vector<schedule::Transfer>& round : rounds.rounds) {
                std::vector<sim::Flow> flows;
                for (const schedule::Transfer& transfer : round)
                    flows.push_back({transfer.from % cluster.device_count(),
                                     transfer.to % cluster.device_count(),
                                     static_cast<double>(transfer.count) / rounds.pieces});
                total += network.price(flows);
            }
            INFO(n << " ranks, kind " << static_cast<int>(kind));
            REQUIRE(total.seconds_per_byte > 0);
            const sim::Candidate& ring = cost.choice(kind, GroupKind::data, core::Bytes(3e9), 0);
            if (n == 512 && ring.algorithm != "ring")
                continue;  // where there is a choice another may be taken
            CHECK(ring.algorithm == "ring");
            CHECK(ring.seconds_per_byte == Approx(total.seconds_per_byte));
            CHECK(ring.latency.value == Approx(total.latency.value));
        }
}

TEST_CASE(
    "groups that repeat on further nodes cost what all of them together cost, and keep the same links busy") {
    const cluster::Cluster cluster = nodes_of("p4d.24xlarge", 8);
    for (const char* order : {"PDT", "DPT"})
        for (const auto& [data, tensor, pipeline] :
             {std::tuple(64, 1, 1), std::tuple(16, 4, 1), std::tuple(8, 8, 1), std::tuple(4, 2, 8),
              std::tuple(2, 16, 2), std::tuple(1, 4, 16), std::tuple(32, 2, 1)})
            for (const GroupKind group : {GroupKind::data, GroupKind::tensor})
                for (const CollectiveKind kind : {CollectiveKind::all_reduce, CollectiveKind::all_gather}) {
                    schedule::Plan plan;
                    plan.layout = {data, tensor, pipeline, order};
                    const int last = pipeline - 1;
                    // All groups at the coordinate, one by one; ranks fill the devices in their order.
                    sim::Groups all;
                    std::set<int> seen;
                    for (int rank = 0; rank < plan.layout.ranks(); ++rank) {
                        if (schedule::coordinates_of(plan.layout, rank).pipeline != last ||
                            seen.contains(rank))
                            continue;
                        const std::vector<int> ranks = schedule::process_group(plan.layout, group, rank);
                        seen.insert(ranks.begin(), ranks.end());
                        all.devices.emplace_back(ranks.begin(), ranks.end());
                    }
                    if (all.size() == 1) continue;
                    INFO(order << " data " << data << " tensor " << tensor << " pipeline " << pipeline);
                    const sim::CostConstants constants;
                    sim::Network network(cluster, sim::nccl_nvlink_efficiency(cluster.instance.device),
                                         sim::network_terms(cluster, constants, sim::framework_traits("")));
                    const core::Bytes bytes(1e8);
                    sim::CommunicationCost cost(plan, cluster, constants);
                    const sim::Candidate& chosen = cost.choice(kind, group, bytes, last);
                    bool is_found = false;
                    for (const sim::Candidate& whole : sim::nccl_candidates(cluster, network, kind, all)) {
                        if (whole.algorithm != chosen.algorithm || whole.protocol != chosen.protocol)
                            continue;
                        is_found = true;
                        CHECK(sim::time_of(whole, bytes).total() == sim::time_of(chosen, bytes).total());
                        REQUIRE(whole.links.size() == chosen.links.size());
                        for (std::size_t i = 0; i < whole.links.size(); ++i) {
                            CHECK(whole.links[i].link == chosen.links[i].link);
                            CHECK(whole.links[i].busy == Approx(chosen.links[i].busy).epsilon(1e-12));
                        }
                    }
                    CHECK(is_found);
                    sim::KnownCandidates known;
                    sim::CommunicationCost times_only(plan, cluster, constants, known);
                    CHECK(times_only.collective(kind, group, bytes, last) ==
                          cost.collective(kind, group, bytes, last));
                    CHECK(times_only.bytes_of_a_group(times_only.choice(kind, group, bytes, last)) ==
                          Approx(cost.bytes_of_a_group(chosen)).epsilon(1e-12));
                }
}

TEST_CASE("what plans of one cluster share of prices is what each of them would find alone") {
    const cluster::Cluster cluster = nodes_of("p4d.24xlarge", 12);
    sim::KnownCandidates known;
    std::mt19937 random(20261123);
    const auto one_of = [&](std::vector<int> values) { return values[random() % values.size()]; };
    std::size_t compared = 0;
    for (int sample = 0; sample < 400; ++sample) {
        schedule::Plan plan;
        const int ranks = 8 * one_of({1, 2, 3, 4, 6, 12}), tensor = one_of({1, 2, 4, 8});
        const int pipeline = one_of({1, 2, 3, 4, 6});
        if (ranks % (tensor * pipeline) != 0) continue;
        plan.layout = {ranks / tensor / pipeline, tensor, pipeline, one_of({0, 9}) ? "PDT" : "DPT"};
        const auto divisor = [&] {
            int degree = 0;
            do degree = 1 + int(random() % unsigned(plan.layout.data));
            while (plan.layout.data % degree != 0);
            return degree;
        };
        plan.layout.context = divisor();
        plan.layout.expert = divisor();
        plan.sharding = schedule::Sharding::parameters;
        plan.shard_degree = divisor();
        sim::CommunicationCost sharing(plan, cluster, {}, known), alone(plan, cluster);
        for (const GroupKind group :
             {GroupKind::tensor, GroupKind::data, GroupKind::shard, GroupKind::replica, GroupKind::context,
              GroupKind::expert, GroupKind::expert_replica, GroupKind::expert_shard})
            for (const CollectiveKind kind : {CollectiveKind::all_reduce, CollectiveKind::all_gather}) {
                if (group == GroupKind::expert_shard && plan.shard_degree % plan.layout.expert != 0) continue;
                const int at = int(random() % unsigned(pipeline));
                const core::Bytes bytes(double(1 << (random() % 28)));
                INFO(name_of(group) << " data " << plan.layout.data << " tensor " << tensor << " context "
                                    << plan.layout.context << " expert " << plan.layout.expert << " shard "
                                    << plan.shard_degree << " at " << at << " of " << pipeline);
                REQUIRE(sharing.collective(kind, group, bytes, at) ==
                        alone.collective(kind, group, bytes, at));
                compared += alone.collective(kind, group, bytes, at).value > 0;
            }
    }
    CHECK(compared > 1000);
}

TEST_CASE("groups that lie differently on nodes are not taken for repetitions") {
    const cluster::Cluster cluster = nodes_of("p4d.24xlarge", 4);
    sim::Groups groups;
    groups.devices = {{0, 8}, {1, 9}, {16, 24}, {18, 25}};  // 18 and 25 are not 1 and 9 two nodes on
    const sim::RepeatedGroups different = sim::find_repeated(cluster, groups);
    CHECK(different.first.devices == groups.devices);
    CHECK(different.nodes_behind.empty());
    groups.devices[3] = {17, 25};
    const sim::RepeatedGroups alike = sim::find_repeated(cluster, groups);
    CHECK(alike.first.devices == std::vector<std::vector<std::int32_t>>{{0, 8}, {1, 9}});
    CHECK(alike.nodes_behind == std::vector<int>{2});
}
