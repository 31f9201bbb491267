// Libraries beside NCCL: what crosses which link, and that no gain is stated anywhere.
#include <catch2/catch.hpp>

#include <cmath>

#include "core/diagnostics.h"
#include "schedule/collective/library.h"
#include "sim/cost/collective/collective.h"
#include "sim/cost/collective/library.h"
#include "sim/evaluate.h"
#include "tests/cluster/instances.h"
#include "tests/model/catalogue.h"

namespace {

using schedule::CollectiveKind;
using schedule::GroupKind;

schedule::Plan plan_of(int ranks, const char* communication) {
    schedule::Plan plan;
    plan.layout = {ranks, 1, 1, "PDT"};
    plan.communication = communication;
    return plan;
}

double seconds(const cluster::Cluster& cluster, const schedule::Plan& plan, CollectiveKind kind,
               core::Bytes bytes) {
    sim::CommunicationCost cost(plan, cluster);
    return cost.collective(kind, GroupKind::data, bytes, 0).value;
}

// Bytes out of and into all nodes for each byte of the payload.
double over_the_network(const cluster::Cluster& cluster, const sim::Candidate& candidate, double rate) {
    const std::size_t links = cluster.instance.links.size();
    double bytes = 0;
    for (const sim::LinkShare& share : candidate.links) {
        const auto slot = static_cast<std::size_t>(share.link);
        if (slot / 2 < links * static_cast<std::size_t>(cluster.nodes) &&
            cluster.instance.links[slot / 2 % links].kind == cluster::LinkKind::network)
            bytes += share.busy * rate;
    }
    return bytes / 2;
}

}  // namespace

TEST_CASE("every library that plans can name has its prices") {
    for (const schedule::CommunicationLibrary& library : schedule::communication_libraries())
        REQUIRE(
            (library.name == "auto" || library.name == "nccl" || sim::find_library(library.name) != nullptr));
}

TEST_CASE(
    "SMDDP's all-reduce puts no more bytes on the network than a ring, takes two hops, and leaves one node "
    "to NCCL") {
    for (int nodes : {2, 4, 8}) {
        const cluster::Cluster cluster = nodes_of("p3dn.24xlarge", nodes);
        const schedule::Plan plan = plan_of(8 * nodes, "smddp");
        sim::CommunicationCost cost(plan, cluster);
        const sim::Candidate& taken =
            cost.choice(CollectiveKind::all_reduce, GroupKind::data, core::mebibytes(25), 0);
        REQUIRE(taken.algorithm == "smddp");
        // (N-1)/N pushed and as much fetched, by every node: 2 (N-1) payloads in all, at the 56 % of 12.5
        // GB/s that NCCL reaches there, less congestion.
        const double rate =
            12.5e9 * 0.56 / (1 + sim::CostConstants{}.decay_per_doubling * (std::log2(nodes) - 1));
        REQUIRE(over_the_network(cluster, taken, rate) == Approx(2.0 * (nodes - 1)).epsilon(1e-6));
        // The fixed time does not grow with the nodes.
        REQUIRE(taken.latency.value < 200e-6);
        REQUIRE(taken.multiprocessors < sim::nccl_multiprocessors(cluster.instance.device) / 2);
    }
    const cluster::Cluster one = nodes_of("p3dn.24xlarge", 1);
    REQUIRE(seconds(one, plan_of(8, "smddp"), CollectiveKind::all_reduce, core::mebibytes(25)) ==
            seconds(one, plan_of(8, "nccl"), CollectiveKind::all_reduce, core::mebibytes(25)));
}

TEST_CASE(
    "SMDDP's all-gather falls back to NCCL where its buffers end: inputs above 16 MiB, or results above "
    "eight sort buffers") {
    const cluster::Cluster cluster = nodes_of("p4d.24xlarge", 4);
    const schedule::Plan plan = plan_of(32, "smddp");
    sim::CommunicationCost cost(plan, cluster);
    const auto algorithm = [&](core::Bytes bytes) {
        return cost.algorithm(CollectiveKind::all_gather, GroupKind::data, bytes, 0);
    };
    // 32 inputs of 16 MiB are 512 MiB, less than eight times 128 MiB.
    REQUIRE(algorithm(core::mebibytes(16 * 32)) == "smddp");
    REQUIRE(algorithm(core::mebibytes(16 * 32 + 1)).starts_with("ring"));
    // Llama-2-70B's layer over 256 ranks: 855.6 M parameters, 1.71 GB: inputs of 6.7 MB, but 214 MB to sort.
    const cluster::Cluster large = nodes_of("p4d.24xlarge", 32);
    const schedule::Plan wide = plan_of(256, "smddp");
    sim::CommunicationCost wide_cost(wide, large);
    REQUIRE(wide_cost.algorithm(CollectiveKind::all_gather, GroupKind::data, core::Bytes(855.6e6 * 2), 0)
                .starts_with("ring"));
    REQUIRE(wide_cost.algorithm(CollectiveKind::all_gather, GroupKind::data, core::Bytes(855.6e6), 0) ==
            "smddp");
    // A third of NCCL's multiprocessors.
    REQUIRE(
        wide_cost.choice(CollectiveKind::all_gather, GroupKind::data, core::Bytes(1e8), 0).multiprocessors ==
        8);
}

TEST_CASE(
    "a parameter server carries every GPU's gradient over the network, MPI and Horovod cost more than NCCL") {
    const cluster::Cluster cluster = nodes_of("p3dn.24xlarge", 4);
    const schedule::Plan servers = plan_of(32, "parameter-server");
    sim::CommunicationCost cost(servers, cluster);
    const double rate = 12.5e9 * 0.56 / (1 + sim::CostConstants{}.decay_per_doubling);
    // Eight workers a node, each pushes and fetches 3/4 of the payload.
    REQUIRE(over_the_network(cluster,
                             cost.choice(CollectiveKind::all_reduce, GroupKind::data, core::gigabytes(1), 0),
                             rate) == Approx(4 * 8 * 2 * 0.75).epsilon(1e-6));
    const core::Bytes bytes = core::mebibytes(25);
    const double nccl = seconds(cluster, plan_of(32, "nccl"), CollectiveKind::all_reduce, bytes);
    for (const char* library : {"horovod", "mpi", "parameter-server"}) {
        INFO(library);
        REQUIRE(seconds(cluster, plan_of(32, library), CollectiveKind::all_reduce, bytes) > nccl);
    }
}

TEST_CASE(
    "the order of a hierarchical all-gather decides what crosses the network: eight times as much from "
    "inside out") {
    const cluster::Cluster cluster = nodes_of("p4d.24xlarge", 4);
    schedule::Plan outside = plan_of(32, "auto"), inside = outside;
    outside.collective = "hierarchical";
    inside.collective = "hierarchical-intra-first";
    sim::CommunicationCost outside_cost(outside, cluster), inside_cost(inside, cluster);
    const double rate = 12.5e9 * 0.85 / (1 + sim::CostConstants{}.decay_per_doubling);
    const double once = over_the_network(
        cluster, outside_cost.choice(CollectiveKind::all_gather, GroupKind::data, core::gigabytes(1), 0),
        rate);
    // Every node receives 3/4 of the result.
    REQUIRE(once == Approx(4 * 0.75));
    REQUIRE(over_the_network(
                cluster,
                inside_cost.choice(CollectiveKind::all_gather, GroupKind::data, core::gigabytes(1), 0),
                rate) == Approx(8 * once));
}

TEST_CASE("a report says what a library leaves to NCCL, and where its makers do not offer it") {
    const model::ModelGraph graph = load_graph("gpt2");
    const auto lines = [&](const char* instance, const char* library, schedule::Sharding sharding) {
        const cluster::Cluster cluster = nodes_of(instance, 2);
        schedule::Plan plan = plan_of(cluster.device_count(), library);
        plan.sharding = sharding;
        plan.precision.compute = core::DataType::fp16;
        plan.attention = model::AttentionImplementation::unfused;
        core::Diagnostics diagnostics;
        const std::optional<sim::Evaluation> evaluation = sim::evaluate(graph, cluster, plan, diagnostics);
        REQUIRE(evaluation);
        std::string all;
        for (const std::string& line : evaluation->assumptions)
            if (line.starts_with("communication = ")) all += line;
        return all;
    };
    using schedule::Sharding;
    CHECK(lines("p4d.24xlarge", "smddp", Sharding::none).empty());
    CHECK(lines("p4d.24xlarge", "horovod", Sharding::none).empty());
    CHECK(lines("g4dn.12xlarge", "smddp", Sharding::none).find("not on g4dn.12xlarge") != std::string::npos);
    CHECK(lines("p4d.24xlarge", "smddp", Sharding::parameters).find("no reduce_scatter for") !=
          std::string::npos);
    CHECK(lines("p4d.24xlarge", "horovod", Sharding::parameters).find("no reduce_scatter and all_gather") !=
          std::string::npos);
}
