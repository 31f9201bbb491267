// Every family of transformers that is read is also lowered and simulated.
#include <catch2/catch.hpp>

#include <set>
#include <string>

#include "model/operators/cost.h"
#include "sim/evaluate.h"
#include "sim/report/breakdown.h"
#include "tests/cluster/instances.h"
#include "tests/model/recorded_families.h"

namespace {

schedule::Plan plan_of(int data, int tensor, int pipeline) {
    schedule::Plan plan;
    plan.layout = {data, tensor, pipeline, "PDT"};
    plan.micro_batches = 4;
    plan.schedule = "1f1b";
    plan.sequence_parallel = tensor > 1;
    return plan;
}

}  // namespace

TEST_CASE("every family of transformers simulates on one node, however it may be divided") {
    const cluster::Cluster cluster = nodes_of("p4d.24xlarge", 1);
    std::set<std::string> families, divided;
    int number = 0;
    for (const recorded::Case& one : recorded::cases()) {
        // The default, which may not fit a node, and every second variation are left out.
        if (number++ % 7 % 2 == 0) continue;
        const recorded::Read read = recorded::graph_of(one);
        REQUIRE(read.graph);
        const model::ModelGraph& graph = *read.graph;
        const bool splits =
            !model::tensor_parallel_unsupported(graph, 2) && !model::sequence_parallel_unsupported(graph);
        for (const schedule::Plan& plan : {plan_of(8, 1, 1), plan_of(4, 1, 2), plan_of(2, 2, 2)}) {
            if (plan.layout.tensor > 1 && !splits) continue;
            INFO(one.family << " tensor " << plan.layout.tensor << " pipeline " << plan.layout.pipeline);
            core::Diagnostics diagnostics;
            const auto evaluation = sim::evaluate(graph, cluster, plan, diagnostics, {});
            INFO(core::format(diagnostics));
            REQUIRE(evaluation);
            // The parts of a step are all of it, and the devices do the model's work: a forward pass and two
            // as long backward cannot take less than their FLOPs at the peak of bf16, 312 TFLOP/s.
            CHECK(sim::sum(evaluation->breakdown).value ==
                  Approx(evaluation->step_time.value).epsilon(1e-12));
            const double samples = plan.micro_batches * plan.layout.data;
            CHECK(evaluation->step_time.value >
                  samples * 3 * model::forward_flops_per_sample(graph).value / (8 * 312e12));
            families.insert(one.family);
            if (plan.layout.tensor > 1) divided.insert(one.family);
        }
    }
    CHECK(families.size() >= 45);
    CHECK(divided.size() >= 35);
}
