// Generated schedules, lowered and run on the clock: figures of papers and frameworks.
#include <catch2/catch.hpp>

#include "core/diagnostics.h"
#include "model/load.h"
#include "schedule/pass/lower.h"
#include "schedule/pipeline/registry.h"
#include "schedule/plan/partition.h"
#include "sim/cost/pricing.h"
#include "sim/engine/simulate.h"
#include "tests/cluster/instances.h"

namespace {

using core::Seconds;

double makespan(const char* name, schedule::PipelineShape shape, double forward, double backward,
                double transfer = 0) {
    const schedule::PipelineSchedule* generator = schedule::find_pipeline_schedule(name);
    REQUIRE(generator != nullptr);
    const schedule::Schedule order = generator->generate(shape);
    const schedule::Program program = schedule::lower_compute_only(order);
    const auto stages = static_cast<std::size_t>(order.stages);
    const sim::StageTimes times{std::vector<Seconds>(stages, Seconds(forward)),
                                std::vector<Seconds>(stages, Seconds(backward / 2)),
                                std::vector<Seconds>(stages, Seconds(backward / 2)), Seconds(transfer)};
    const sim::Simulation folded = sim::simulate(program, sim::durations_of(program, times));
    const sim::Simulation serial =
        sim::simulate(program, sim::durations_of(program, times), {.has_concurrent_streams = false});
    if (transfer == 0) REQUIRE(folded.timeline.makespan.value == serial.timeline.makespan.value);
    return folded.timeline.makespan.value;
}

}  // namespace

TEST_CASE(
    "lowered simple, interleaved and 1F1B take (m + p - 1)(F + B) with equal stages and free communication") {
    for (const char* name : {"simple", "interleaved", "1f1b"})
        for (int p = 1; p <= 6; ++p)
            for (int m : {1, 2, 3, 4, 6, 8, 12, 16}) {
                schedule::PipelineShape shape;
                shape.ranks = p;
                shape.micro_batches = m;
                shape.parameters = schedule::AdmissionParameters{std::max(m, p)};
                if (schedule::unsupported(*schedule::find_pipeline_schedule(name), shape)) continue;
                INFO(name << " p " << p << " m " << m);
                REQUIRE(makespan(name, shape, 1, 2) == (m + p - 1) * 3.0);
            }
}

TEST_CASE(
    "SMP interleaved with 4 stages, 16 micro-batches, F 1 and B 2 takes 57 with 6 active micro-batches and "
    "99 with 2") {
    schedule::PipelineShape shape;
    shape.ranks = 4;
    shape.micro_batches = 16;
    shape.parameters = schedule::AdmissionParameters{6};
    REQUIRE(makespan("interleaved", shape, 1, 2) == 57);
    shape.parameters = schedule::AdmissionParameters{2};
    REQUIRE(makespan("interleaved", shape, 1, 2) == 99);
}

TEST_CASE("Megatron's interleaved 1F1B divides the bubble by the number of chunks") {
    // m v (F + B) of work and (p - 1)(F + B) of bubble, times per chunk (arXiv 2104.04473, section 2.2.2).
    for (int p : {2, 3, 4})
        for (int v : {2, 3})
            for (int rounds : {1, 2, 4}) {
                schedule::PipelineShape shape;
                shape.ranks = p;
                shape.chunks = v;
                shape.micro_batches = p * rounds;
                REQUIRE(makespan("interleaved-1f1b", shape, 1, 2) == (p * rounds * v + p - 1) * 3.0);
            }
}

TEST_CASE("folding changes nothing: every rank of a lowered plan has the times of its class") {
    core::Diagnostics diagnostics;
    const std::optional<model::ModelGraph> graph = model::load_model(std::string("gpt2"), {}, diagnostics);
    const cluster::Cluster cluster = nodes_of("p4d.24xlarge", 2);
    REQUIRE(graph.has_value());
    for (schedule::Sharding sharding :
         {schedule::Sharding::none, schedule::Sharding::optimizer, schedule::Sharding::parameters})
        for (const schedule::ParallelLayout& layout :
             {schedule::ParallelLayout{4, 2, 2, "PDT"}, schedule::ParallelLayout{2, 2, 4, "DPT"},
              schedule::ParallelLayout{16, 1, 1, "PDT"}}) {
            schedule::Plan plan;
            plan.layout = layout;
            plan.micro_batches = 5;
            plan.sharding = sharding;
            plan.sequence_parallel = layout.tensor > 1;
            plan.partition = *schedule::complete_partition(plan, *graph);
            const std::optional<schedule::Schedule> order = schedule::make_schedule(plan, diagnostics);
            REQUIRE(order.has_value());
            const schedule::Program program = schedule::lower(plan, *graph, *order);
            std::optional<sim::CostModels> costs = sim::make_cost_models(*graph, cluster, plan, diagnostics);
            REQUIRE(costs.has_value());
            const sim::PricedProgram priced = sim::price(program, *costs);
            const sim::Simulation folded = sim::simulate(program, priced.durations);
            const sim::Simulation whole = sim::simulate(program, priced.durations, {.is_folded = false});
            REQUIRE(whole.timeline.spans.size() == 16);
            REQUIRE(whole.timeline.makespan.value == folded.timeline.makespan.value);
            for (std::size_t rank = 0; rank < 16; ++rank) {
                const auto own = static_cast<std::size_t>(whole.timeline.class_of[rank]);
                REQUIRE(whole.end[rank].value == folded.end[own].value);
                REQUIRE(whole.memory.peak[rank].value == folded.memory.peak[own].value);
            }
        }
}
