// Held-out data between the steps of a training: the same loss whatever the plan, and nothing else changes.
// What every other test trains is evaluated too and compared with the reference (tiny::compare).
#include <catch2/catch.hpp>

#include "exec/checkpoint/checkpoint.h"
#include "tests/exec/temporary_folder.h"
#include "tests/exec/tiny.h"

namespace {

exec::RunResult train(const schedule::Plan& plan, const model::ModelGraph& graph, exec::RunOptions options) {
    options.time_limit = core::seconds(20);
    options.keeps_state = true;
    return exec::run(tiny::program_of(plan, graph), graph, tiny::data_of(graph), options);
}

exec::RunOptions evaluating(const model::ModelGraph& graph, int every, int batches) {
    exec::RunOptions options;
    options.steps = 5;
    options.evaluation = {tiny::held_out_data_of(graph), every, batches};
    return options;
}

}  // namespace

TEST_CASE("evaluation leaves no trace in a training: losses and parameters are equal to the bit") {
    schedule::Plan plan = tiny::plan();
    model::ModelGraph graph = tiny::gpt(4, "dropout = 0.2\nattention_dropout = 0.1");
    plan.optimizer.kind = schedule::OptimizerKind::adamw;
    exec::RunOptions options = evaluating(graph, 1, 3);
    SECTION("one rank") {}
    SECTION("buckets exchanged beside the computation") {
        plan.layout.data = 2;
        plan.sharding = GENERATE(schedule::Sharding::optimizer, schedule::Sharding::parameters);
        options.overlaps = true;
    }
    SECTION("pipeline with a split backward, recomputed") {
        plan.layout.pipeline = 2;
        plan.schedule = "zb-h1";
        plan.recompute = schedule::Recompute::full;
    }
    SECTION("interleaved pipeline with sharded parameters and activations elsewhere") {
        plan.layout.pipeline = plan.layout.data = 2;
        plan.virtual_stages = 2;
        plan.schedule = "interleaved-1f1b";
        plan.sharding = schedule::Sharding::parameters;
        plan.offload = schedule::Offload::host;
    }
    SECTION("two directions") {
        plan.layout.pipeline = 2;
        plan.schedule = "chimera";
    }
    SECTION("several versions of parameters") {
        graph = tiny::gpt(4);
        plan.layout.pipeline = 2;
        plan.schedule = "pipedream";
    }
    SECTION("sequences in segments") {
        graph = tiny::llama(4);
        plan.layout.pipeline = 2;
        plan.schedule = "seq1f1b";
        plan.schedule_parameters = schedule::SegmentParameters{2};
    }
    SECTION("experts, context and tensor parallelism in bf16") {
        graph = tiny::mixtral(2);
        plan.layout.data = 4;
        plan.layout.expert = plan.layout.context = plan.layout.tensor = 2;
        plan.precision = {core::DataType::bf16, core::DataType::bf16, core::DataType::fp32, true};
    }
    INFO(core::to_toml(schedule::to_value(plan)));
    options.evaluation.data = tiny::held_out_data_of(graph);
    const exec::RunResult with = train(plan, graph, options);
    options.evaluation = {};
    const exec::RunResult without = train(plan, graph, options);
    CHECK(with.evaluations.size() == 5);
    CHECK(without.evaluations.empty());
    CHECK(with.losses == without.losses);
    CHECK(with.parameters == without.parameters);
    CHECK(with.gradients == without.gradients);
    // Held-out data are no training data, and training changes what they say.
    CHECK(with.evaluations[0].loss != with.losses[0]);
    CHECK(with.evaluations[0].loss != with.evaluations[4].loss);
}

TEST_CASE("evaluation comes after every so many steps from the beginning of a training, and after its last") {
    const model::ModelGraph graph = tiny::gpt(2);
    const auto steps_of = [&](const exec::RunOptions& options) {
        std::vector<std::int64_t> steps;
        for (const exec::Evaluated& one : train(tiny::plan(), graph, options).evaluations)
            steps.push_back(one.step);
        return steps;
    };
    CHECK(steps_of(evaluating(graph, 2, 1)) == std::vector<std::int64_t>{2, 4, 5});
    CHECK(steps_of(evaluating(graph, 5, 1)) == std::vector<std::int64_t>{5});
    CHECK(steps_of(evaluating(graph, 0, 1)) == std::vector<std::int64_t>{5});
    exec::RunOptions resumed = evaluating(graph, 2, 1);
    resumed.first_step = 3;
    CHECK(steps_of(resumed) == std::vector<std::int64_t>{4, 6, 8});
}

TEST_CASE("a checkpoint evaluated by a forward-only plan has the loss that its training saw") {
    // Another Program, lowered from another schedule, with one rank and without a step of training.
    const TemporaryFolder folder;
    const model::ModelGraph graph = tiny::llama(4);
    schedule::Plan plan = tiny::plan();
    plan.layout.pipeline = plan.layout.data = 2;
    plan.sharding = GENERATE(schedule::Sharding::none, schedule::Sharding::parameters);
    exec::RunOptions options = evaluating(graph, 0, 3);
    options.checkpoints.directory = folder.path;
    const exec::RunResult trained = train(plan, graph, options);

    schedule::Plan forward = tiny::plan();
    forward.schedule = "forward-only";
    forward.micro_batches = plan.micro_batches * 2;
    core::Diagnostics diagnostics;
    exec::RunOptions evaluation;
    evaluation.steps = 3;
    evaluation.resumed = exec::Checkpoint::open(folder.path, std::nullopt, diagnostics);
    REQUIRE(evaluation.resumed);
    const exec::RunResult evaluated =
        exec::run(tiny::program_of(forward, graph), graph, tiny::held_out_data_of(graph), evaluation);
    double mean = 0;
    for (const double loss : evaluated.losses) mean += loss / 3;
    REQUIRE(trained.evaluations.size() == 1);
    CHECK(trained.evaluations[0].loss == Approx(mean).epsilon(1e-6));
    CHECK(evaluated.losses[0] != Approx(evaluated.losses[1]).epsilon(1e-6));
}
