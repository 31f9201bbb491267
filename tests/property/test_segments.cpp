// Sequences in segments through the pipeline (Seq1F1B): what comes out is what whole sequences give, whatever
// else the plan asks for.
#include <catch2/catch.hpp>

#include <map>

#include "core/diagnostics.h"
#include "model/segment.h"
#include "sim/engine/simulate.h"
#include "tests/exec/tiny.h"

namespace {

schedule::Plan in_segments(int stages, int segments) {
    schedule::Plan plan = tiny::plan();
    plan.schedule = "seq1f1b";
    plan.layout.pipeline = stages;
    plan.schedule_parameters = schedule::SegmentParameters{segments};
    return plan;
}

// Ranks are threads that run ahead of one another as they like: what arrives early is held longer (seen on
// busy machines: 5.0 and 5.3 %).
constexpr double held_early = 0.10;

// Peaks that the simulator predicts for the Program against those of the run.
void check_memory(const schedule::Program& program, const exec::RunResult& run) {
    sim::Durations durations;
    for (const schedule::RankProgram& list : program.classes)
        durations.of.emplace_back(list.instructions.size(), core::microseconds(1));
    const sim::Simulation predicted =
        sim::simulate(program, durations, {.has_concurrent_streams = false, .is_folded = false});
    for (std::size_t rank = 0; rank < run.memory.peak.size(); ++rank) {
        INFO("rank " << rank);
        CHECK(run.memory.peak[rank].value == Approx(predicted.memory.peak[rank].value).epsilon(held_early));
    }
}

}  // namespace

TEST_CASE(
    "segments of a sequence train as the whole sequence does, for every kind of position and attention") {
    const std::string more =
        GENERATE(as<std::string>{}, "", "dropout = 0.2\nattention_dropout = 0.1", "tied_embeddings = false");
    const int segments = GENERATE(2, 4, 8);
    const auto attention =
        GENERATE(model::AttentionImplementation::flash, model::AttentionImplementation::unfused);
    for (const model::ModelGraph& graph :
         {tiny::gpt(4, more), tiny::llama(4, more.find("dropout") != std::string::npos ? "" : more)}) {
        schedule::Plan plan = in_segments(2, segments);
        plan.attention = attention;
        INFO(graph.family << " in " << segments << " segments, " << more);
        const tiny::Comparison result = tiny::compare(plan, graph);
        tiny::check_equal(result);
        check_memory(tiny::program_of(plan, graph), result.run);
    }
}

TEST_CASE(
    "segments train as the whole under recomputation, tensor, sequence and data parallelism and sharding") {
    schedule::Plan plan = in_segments(2, 2);
    using schedule::Recompute, schedule::RecomputeModule;
    std::tie(plan.recompute, plan.recompute_modules) = GENERATE(table<Recompute, schedule::RecomputeModules>(
        {{Recompute::none, {RecomputeModule::core_attn}},
         {Recompute::selective, {RecomputeModule::core_attn}},
         {Recompute::selective,
          {RecomputeModule::core_attn, RecomputeModule::layernorm, RecomputeModule::activation}},
         {Recompute::full, {RecomputeModule::core_attn}}}));
    SECTION("alone") {}
    SECTION("four segments") { plan.schedule_parameters = schedule::SegmentParameters{4}; }
    SECTION("tensor") { plan.layout.tensor = 2; }
    SECTION("sequence") {
        plan.layout.tensor = 2;
        plan.sequence_parallel = true;
    }
    SECTION("data") {
        plan.layout.data = 2;
        plan.sharding = GENERATE(schedule::Sharding::none, schedule::Sharding::optimizer,
                                 schedule::Sharding::gradients, schedule::Sharding::parameters);
    }
    for (const model::ModelGraph& graph :
         {tiny::gpt(4, "dropout = 0.1\nattention_dropout = 0.1"), tiny::llama(4)}) {
        INFO(graph.family << ", recompute " << schedule::recomputation_text(plan) << ", sharding "
                          << schedule::name_of(plan.sharding));
        const tiny::Comparison result = tiny::compare(plan, graph);
        tiny::check_equal(result);
        check_memory(tiny::program_of(plan, graph), result.run);
    }
}

TEST_CASE("a sliding window and linear biases reach over the segments before") {
    const std::string more = GENERATE(as<std::string>{}, "window = 3", "position_encoding = 'alibi'");
    INFO(more);
    tiny::check_equal(tiny::compare(in_segments(4, 4), tiny::gpt(4, more)));
}

TEST_CASE("segments in bf16 follow fp32 as closely as whole sequences in bf16 do") {
    const model::ModelGraph graph = tiny::llama(4);
    schedule::Plan plan = in_segments(2, 4);
    plan.precision = {};
    const tiny::Comparison segments = tiny::compare(plan, graph);
    plan.schedule = "1f1b";
    plan.schedule_parameters = schedule::SegmentParameters{0};
    const tiny::Comparison whole = tiny::compare(plan, graph);
    CHECK(segments.losses < 2 * whole.losses + 1e-3);
    CHECK(segments.gradients < 2 * whole.gradients + 1e-2);
}

TEST_CASE(
    "smaller segments hold less at once: the first rank keeps p - 1 + s segments of its micro-batches") {
    const model::ModelGraph graph = tiny::gpt(4);
    std::map<int, double> activations;
    for (const int segments : {1, 2, 4}) {
        schedule::Plan plan = in_segments(4, segments);
        plan.micro_batches = 8;
        if (segments == 1) plan.schedule = "1f1b", plan.schedule_parameters = schedule::SegmentParameters{0};
        const schedule::Program program = tiny::program_of(plan, graph);
        sim::Durations durations;
        for (const schedule::RankProgram& list : program.classes)
            durations.of.emplace_back(list.instructions.size(), core::microseconds(1));
        const sim::Simulation run =
            sim::simulate(program, durations, {.has_concurrent_streams = false, .is_folded = false});
        activations[segments] =
            run.memory.at_peak[0][static_cast<std::size_t>(schedule::MemoryKind::activations)].value;
    }
    // min(s m, p - 1 - r + s) segments: 4 whole, 5 halves, 7 quarters; beside them the gradients that wait
    // for keys and values.
    CHECK(activations[2] < 0.75 * activations[1]);
    CHECK(activations[4] < 0.60 * activations[1]);
}

TEST_CASE("what cannot be cut into segments is said at its key") {
    const auto problems = [](const model::ModelGraph& graph, schedule::Plan plan) {
        core::Diagnostics diagnostics;
        schedule::check_plan(plan, graph, 1 << 20, nullptr, diagnostics);
        return core::format(diagnostics);
    };
    CHECK(problems(tiny::gpt(), in_segments(2, 3)).find("8 tokens are not a multiple of 3") !=
          std::string::npos);
    CHECK(problems(tiny::gpt(), in_segments(2, 0)).find("error") == std::string::npos);
    const model::ModelGraph bert = tiny::model_of(
        "family = 'bert'\nhidden = 16\nlayers = 4\nheads = 4\nvocabulary = 30\nmax_positions = "
        "8\nsequence_length = 8\n");
    CHECK(problems(bert, in_segments(2, 2)).find("is not causal") != std::string::npos);
    schedule::Plan whole = in_segments(2, 2);
    whole.schedule = "1f1b";
    CHECK(problems(tiny::gpt(), whole).find("works on whole sequences") != std::string::npos);
}
