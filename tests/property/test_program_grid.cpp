// One Program, three readers: the verifier, the virtual clock and the real one.
#include <catch2/catch.hpp>

#include "schedule/pipeline/registry.h"
#include "sim/simulate.h"
#include "tests/exec/tiny.h"

TEST_CASE("every Program of the grid is verified, simulated and executed, and trains as the reference does") {
    const model::ModelGraph graph = tiny::gpt(6);
    const auto data = tiny::data_of(graph);
    int programs = 0;
    for (const int micro_batches : {1, 2, 3, 4, 6, 8}) {
        schedule::Plan base = tiny::plan();
        base.micro_batch = 1;
        base.micro_batches = micro_batches;
        const exec::ReferenceResult reference = exec::run_reference(graph, base, data, {1, exec::RunOptions{}.seed});
        for (const schedule::PipelineSchedule& candidate : schedule::pipeline_schedules()) {
            if (candidate.is_forward_only || candidate.is_asynchronous || candidate.is_bidirectional || candidate.has_segments) continue;
            for (const int stages : {1, 2, 3, 4}) {
                schedule::Plan plan = base;
                plan.schedule = candidate.name;
                plan.layout.pipeline = stages;
                plan.virtual_stages = candidate.least_chunks;
                core::Diagnostics diagnostics;
                if (plan.stages() > static_cast<int>(graph.units.size()) || !schedule::make_schedule(plan, diagnostics)) continue;
                INFO(candidate.name << ", " << stages << " ranks, " << micro_batches << " micro-batches");
                const schedule::Program program = tiny::program_of(plan, graph);

                sim::Durations durations;
                for (const schedule::RankProgram& list : program.classes) durations.of.emplace_back(list.instructions.size(), core::microseconds(1));
                const sim::Simulation predicted = sim::simulate(program, durations, {.has_concurrent_streams = false, .is_folded = false});
                exec::RunOptions options;
                options.keeps_state = true;
                options.time_limit = core::seconds(20);
                const exec::RunResult measured = exec::run(program, graph, data, options);

                CHECK(std::abs(measured.losses[0] - reference.losses[0]) <= 1e-5 * reference.losses[0]);
                for (std::size_t p = 0; p < graph.parameters.size(); ++p) {
                    INFO(graph.parameters[p].name);
                    double largest = 0;
                    for (const double g : reference.gradients[p]) largest = std::max(largest, std::abs(g));
                    if (largest > 1e-7) CHECK(exec::relative_difference(measured.gradients[p], reference.gradients[p]) < 1e-5);
                }
                // Both clocks performed the same lists, and memory came out as predicted.
                REQUIRE(predicted.timeline.spans.size() == measured.timelines[0].spans.size());
                // Which message waits in a buffer when another buffer is largest is up to the clock: one of 8 tokens x 16 values more or less in each direction.
                constexpr double messages = 2 * 8 * 16 * 4;
                for (std::size_t rank = 0; rank < measured.timelines[0].spans.size(); ++rank) {
                    CHECK(predicted.timeline.spans[rank].size() == measured.timelines[0].spans[rank].size());
                    CHECK(measured.memory.peak[rank].value == Approx(predicted.memory.peak[rank].value).epsilon(0.10).margin(messages));
                }
                ++programs;
            }
        }
    }
    CHECK(programs > 60);
}

TEST_CASE("what a run allocates is within a tenth of what was predicted, for every kind of plan") {
    const model::ModelGraph graph = tiny::gpt(4, "dropout = 0.1\nattention_dropout = 0.1");
    const auto data = tiny::data_of(graph);
    schedule::Plan plan = tiny::plan();
    plan.optimizer.kind = schedule::OptimizerKind::adamw;
    plan.attention = GENERATE(model::AttentionImplementation::flash, model::AttentionImplementation::unfused);
    plan.recompute = GENERATE(schedule::Recompute::none, schedule::Recompute::selective, schedule::Recompute::full);
    SECTION("data") {
        plan.layout.data = 2;
        plan.sharding = GENERATE(schedule::Sharding::none, schedule::Sharding::optimizer, schedule::Sharding::gradients, schedule::Sharding::parameters);
    }
    SECTION("tensor") {
        plan.layout.tensor = 2;
        plan.sequence_parallel = GENERATE(false, true);
    }
    SECTION("pipeline") { plan.layout.pipeline = 2; }
    INFO(schedule::name_of(plan.sharding) << ", recompute " << schedule::name_of(plan.recompute) << ", sequence parallel " << plan.sequence_parallel
                                          << ", pipeline " << plan.layout.pipeline);
    const schedule::Program program = tiny::program_of(plan, graph);
    sim::Durations durations;
    for (const schedule::RankProgram& list : program.classes) durations.of.emplace_back(list.instructions.size(), core::microseconds(1));
    const sim::Simulation predicted = sim::simulate(program, durations, {.has_concurrent_streams = false, .is_folded = false});
    const exec::RunResult measured = exec::run(program, graph, data, {});
    for (std::size_t rank = 0; rank < measured.memory.peak.size(); ++rank)
        CHECK(measured.memory.peak[rank].value == Approx(predicted.memory.peak[rank].value).epsilon(0.10));
}
