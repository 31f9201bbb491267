#include <catch2/catch.hpp>

#include "core/diagnostics.h"
#include "schedule/pass/lower.h"
#include "schedule/plan/memory.h"
#include "schedule/plan/partition.h"
#include "sim/cost/host_memory.h"
#include "sim/evaluate.h"
#include "tests/cluster/instances.h"
#include "tests/model/catalogue.h"

namespace {

sim::Evaluation evaluation_of(const model::ModelGraph& graph, const cluster::Cluster& cluster,
                              const schedule::Plan& plan) {
    core::Diagnostics diagnostics;
    std::optional<sim::Evaluation> evaluation = sim::evaluate(graph, cluster, plan, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(evaluation);
    return *evaluation;
}

schedule::Plan offloading(int data, int micro_batches) {
    schedule::Plan plan;
    plan.layout.data = data;
    plan.micro_batches = micro_batches;
    plan.offload = schedule::Offload::host;
    return plan;
}

}  // namespace

TEST_CASE(
    "a host holds what its ranks have away at a time: of one micro-batch, all layers that wait long enough, "
    "whatever the number of micro-batches") {
    const model::ModelGraph graph = load_graph("gpt2", 256);
    for (const int ranks : {1, 8})
        for (const int micro_batches : {1, 4}) {
            const schedule::Plan plan = offloading(ranks, micro_batches);
            const auto footprint = schedule::activation_footprint(
                graph, {0, static_cast<std::int32_t>(graph.operators.size())}, plan);
            // Unit u of U runs forward as task u and backward as task 2 U - 1 - u of its micro-batch; it
            // leaves when the load, four tasks before the backward, comes two or more after the forward: 2 U
            // - 1 - 2 u >= 6. All of those are away when the first of them, u = U - 4, is wanted: 2 U - 1 - u
            // - 4 = U - 1 is the last forward task.
            const auto units = static_cast<int>(footprint.offloadable.size());
            core::Bytes away;
            for (int u = 0; 2 * units - 1 - 2 * u >= 6; ++u)
                away += footprint.offloadable[static_cast<std::size_t>(u)].bytes;
            const sim::Evaluation evaluation = evaluation_of(graph, nodes_of("p4d.24xlarge", 1), plan);
            CHECK(evaluation.host_memory.value == Approx(away.value * ranks));
            CHECK(evaluation.available_host_memory == core::gibibytes(1152));
        }
}

TEST_CASE("nodes do not add up, and what stays or goes to disk takes nothing of a host") {
    const model::ModelGraph graph = load_graph("gpt2", 256);
    const core::Bytes one = evaluation_of(graph, nodes_of("p4d.24xlarge", 1), offloading(8, 1)).host_memory;
    CHECK(one.value > 0);
    CHECK(evaluation_of(graph, nodes_of("p4d.24xlarge", 2), offloading(16, 1)).host_memory.value ==
          Approx(one.value));
    schedule::Plan plan = offloading(8, 1);
    plan.offload = schedule::Offload::disk;
    plan.offload_bandwidth = core::gigabytes_per_second(6);
    CHECK(evaluation_of(graph, nodes_of("p4d.24xlarge", 1), plan).host_memory.value == 0);
    plan.offload = schedule::Offload::none;
    CHECK(evaluation_of(graph, nodes_of("p4d.24xlarge", 1), plan).host_memory.value == 0);
}

TEST_CASE("an optimizer on the hosts takes their memory and the rate of it, and none of the devices'") {
    using schedule::Sharding;
    const model::ModelGraph graph = load_graph("gpt2", 256);
    double parameters = 0;
    for (const model::Parameter& parameter : graph.parameters)
        parameters += static_cast<double>(model::element_count(parameter.shape));
    for (const int nodes : {1, 2})
        for (const Sharding sharding : {Sharding::none, Sharding::optimizer, Sharding::parameters}) {
            const int ranks = 8 * nodes;
            schedule::Plan plan;
            plan.layout.data = ranks;
            plan.sharding = sharding;
            plan.overlaps_gradient_reduction = false;
            const cluster::Cluster cluster = nodes_of("p4d.24xlarge", nodes);
            const sim::Evaluation on_device = evaluation_of(graph, cluster, plan);
            plan.optimizer_offload = schedule::Offload::host;
            const sim::Evaluation on_host = evaluation_of(graph, cluster, plan);
            const double updated = sharding == Sharding::none ? parameters : parameters / ranks;
            // Values of 32 bits, two moments, the gradient and what goes back, of 16 bits each; padding.
            CHECK(on_host.host_memory.value == Approx(16 * updated * 8).epsilon(1e-3));
            CHECK(on_device.host_memory.value == 0);
            CHECK(on_host.memory[0].optimizer.value == 0);
            CHECK(on_device.memory[0].optimizer.value >= 12 * updated);
            // 28 bytes each of a gradient of two, two moments and values of four twice, and two that go back,
            // at 45 % of an eighth of 281.6 GB/s.
            const double seconds = 28 * updated / (0.45 * 281.6e9 / 8);
            CHECK(on_host.breakdown.optimizer.value >= seconds * (1 - 1e-9));
            CHECK(on_host.breakdown.optimizer.value < seconds * 1.1 + on_device.breakdown.optimizer.value);
            CHECK(on_host.breakdown.offload.value > 0);
        }
}

TEST_CASE("parameters on the hosts leave the devices, come before every pass and send gradients after it") {
    const model::ModelGraph graph = load_graph("gpt2", 256);
    double parameters = 0;
    for (const model::Parameter& parameter : graph.parameters)
        parameters += static_cast<double>(model::element_count(parameter.shape));
    const cluster::Cluster cluster = nodes_of("p4d.24xlarge", 1);
    for (const int ranks : {1, 8})
        for (const int micro_batches : {1, 3}) {
            schedule::Plan plan;
            plan.layout.data = ranks;
            plan.micro_batches = micro_batches;
            plan.sharding = schedule::Sharding::parameters;
            plan.optimizer_offload = schedule::Offload::host;
            plan.overlaps_gradient_reduction = plan.overlaps_parameter_gathering = false;
            const sim::Evaluation on_device = evaluation_of(graph, cluster, plan);
            plan.parameter_offload = schedule::Offload::host;
            const sim::Evaluation on_host = evaluation_of(graph, cluster, plan);
            const double own = parameters / ranks;
            CHECK(on_host.host_memory.value == Approx(16 * own * ranks).epsilon(1e-3));
            CHECK(on_host.host_memory.value == Approx(on_device.host_memory.value).epsilon(1e-9));
            CHECK(on_host.peak_memory < on_device.peak_memory);
            // Of two bytes each: values twice a micro-batch, gradients once, each way at 16 GB/s or less, as
            // two devices share a switch; from the second micro-batch on three times as many bytes of the
            // host's memory for the sum.
            const double copied = own * 2 * 3 * micro_batches / 16e9,
                         added = own * 2 * 3 * (micro_batches - 1) / (0.45 * 281.6e9 / ranks);
            CHECK(on_host.breakdown.offload.value > copied + added);
            CHECK(on_host.step_time > on_device.step_time);
        }
}

TEST_CASE("a host whose memory has no known rate is not said to update") {
    const model::ModelGraph graph = load_graph("gpt2", 256);
    schedule::Plan plan;
    plan.layout.data = 8;
    plan.optimizer_offload = schedule::Offload::host;
    cluster::Cluster cluster = nodes_of("p4d.24xlarge", 1);
    cluster.instance.host_memory_bandwidth = {};
    core::Diagnostics diagnostics;
    CHECK_FALSE(sim::evaluate(graph, cluster, plan, diagnostics));
    CHECK(core::format(diagnostics).find("host_memory_bandwidth") != std::string::npos);
}

TEST_CASE("a plan whose offloaded activations exceed the host does not fit and says so") {
    const model::ModelGraph graph = load_graph("gpt2", 256);
    cluster::Cluster cluster = nodes_of("p4d.24xlarge", 1);
    const core::Bytes needed = evaluation_of(graph, cluster, offloading(8, 2)).host_memory;
    cluster.instance.host_memory = needed;
    CHECK(evaluation_of(graph, cluster, offloading(8, 2)).fits);
    cluster.instance.host_memory = needed * 0.99;
    const sim::Evaluation evaluation = evaluation_of(graph, cluster, offloading(8, 2));
    CHECK_FALSE(evaluation.fits);
    CHECK(evaluation.tightest.find("host of the fullest node") != std::string::npos);
}

TEST_CASE(
    "processors' ranks lie in their host's memory: of ten on two nodes of eight cores, with what they have "
    "away, the eight of the first") {
    const model::ModelGraph graph = load_graph("gpt2", 256);
    cluster::Cluster cluster = nodes_of("local-cpu", 1);
    cluster.instance.devices = 8;
    cluster.nodes = 2;
    sim::EvaluateOptions options;
    options.memory_only = true;  // times would need routes between such nodes
    const auto evaluation_on = [&](int ranks) {
        core::Diagnostics diagnostics;
        std::optional<sim::Evaluation> evaluation =
            sim::evaluate(graph, cluster, offloading(ranks, 1), diagnostics, options);
        INFO(core::format(diagnostics));
        REQUIRE(evaluation);
        return *evaluation;
    };
    const sim::Evaluation alone = evaluation_on(1), of_ten = evaluation_on(10);
    const core::Bytes away = alone.host_memory - alone.peak_memory;
    CHECK(away.value > 0);
    CHECK(of_ten.host_memory.value == Approx(8 * (away + of_ten.peak_memory).value));
}
