// The whole CUDA backend without a GPU: planning, arena, edges, precision and our kernels, with libraries replaced by loops.
#include <catch2/catch.hpp>

#include "exec/cuda/make_backend.h"
#include "exec/rank_run.h"
#include "schedule/pipeline/registry.h"
#include "tests/exec/tiny.h"
#include "tests/exec_cuda/emulated_machine.h"

namespace {

exec::BackendMaker emulated_backend() {
    return [](const exec::BackendRequest& request) {
        return exec::cuda::make_backend(request, std::make_shared<emulated::Emulated>(), std::make_shared<emulated::Messages>(request.communicator));
    };
}

}  // namespace

TEST_CASE("on one emulated GPU a model trains as the reference does") {
    schedule::Plan plan = tiny::plan();
    const exec::BackendMaker emulated = emulated_backend();
    SECTION("GPT") { tiny::check_equal(tiny::compare(plan, tiny::gpt(), 2, emulated)); }
    SECTION("GPT with dropout") { tiny::check_equal(tiny::compare(plan, tiny::gpt(2, "dropout = 0.2\nattention_dropout = 0.3"), 2, emulated)); }
    SECTION("Llama") { tiny::check_equal(tiny::compare(plan, tiny::llama(), 2, emulated)); }
    SECTION("unfused attention") {
        plan.attention = model::AttentionImplementation::unfused;
        tiny::check_equal(tiny::compare(plan, tiny::gpt(2, "dropout = 0.2\nattention_dropout = 0.3"), 2, emulated));
        tiny::check_equal(tiny::compare(plan, tiny::llama(2), 2, emulated));
    }
    SECTION("fused cross-entropy") {
        plan.fused_cross_entropy = true;
        tiny::check_equal(tiny::compare(plan, tiny::gpt(2), 2, emulated));
    }
}

TEST_CASE("emulated GPUs train as the reference does with every parallelism") {
    schedule::Plan plan = tiny::plan();
    const exec::BackendMaker emulated = emulated_backend();
    const model::ModelGraph graph = tiny::gpt(4);
    SECTION("pipelines: every fourth schedule that has a flush, since an emulated step takes long") {
        int number = 0;
        for (const schedule::PipelineSchedule& candidate : schedule::pipeline_schedules()) {
            if (candidate.is_forward_only || candidate.is_asynchronous || candidate.is_bidirectional || candidate.has_segments) continue;
            if (number++ % 4 != 0) continue;
            plan = tiny::plan();
            plan.schedule = candidate.name;
            plan.layout.pipeline = 2;
            plan.micro_batches = 4;
            plan.micro_batch = 1;
            plan.virtual_stages = candidate.least_chunks;
            if (plan.stages() > static_cast<int>(graph.units.size())) continue;
            core::Diagnostics diagnostics;
            if (!schedule::make_schedule(plan, diagnostics)) continue;
            INFO(candidate.name);
            tiny::check_equal(tiny::compare(plan, graph, 1, emulated));
        }
    }
    SECTION("data parallelism in every sharding") {
        plan.layout.data = 2;
        for (const schedule::Sharding sharding : {schedule::Sharding::none, schedule::Sharding::optimizer, schedule::Sharding::gradients,
                                                  schedule::Sharding::parameters}) {
            plan.sharding = sharding;
            INFO(schedule::name_of(sharding));
            tiny::check_equal(tiny::compare(plan, graph, 1, emulated));
        }
    }
    SECTION("tensor parallelism, along sequences too, with recomputation") {
        plan.layout.tensor = 2;
        for (const bool along_sequences : {false, true})
            for (const schedule::Recompute recompute : {schedule::Recompute::none, schedule::Recompute::full}) {
                plan.sequence_parallel = along_sequences;
                plan.recompute = recompute;
                tiny::check_equal(tiny::compare(plan, graph, 1, emulated));
            }
    }
    SECTION("pipeline 2 x data 2, sharded parameters") {
        plan.layout.pipeline = plan.layout.data = 2;
        plan.sharding = schedule::Sharding::parameters;
        tiny::check_equal(tiny::compare(plan, graph, 1, emulated));
    }
}

TEST_CASE("in bf16 with fp32 master weights an emulated GPU's losses stay near the reference") {
    schedule::Plan plan = tiny::plan();
    plan.precision = {core::DataType::bf16, core::DataType::bf16, core::DataType::bf16, true};
    const model::ModelGraph graph = tiny::gpt(2);
    core::Diagnostics diagnostics;
    const auto partition = schedule::complete_partition(plan, graph);
    REQUIRE(partition);
    plan.partition = *partition;
    const auto order = schedule::make_schedule(plan, diagnostics);
    REQUIRE(order);
    const schedule::Program program = schedule::lower(plan, graph, *order);
    const auto data = tiny::data_of(graph);
    exec::RunOptions options;
    options.steps = 5;
    options.make_backend = emulated_backend();
    const exec::RunResult run = exec::run(program, graph, data, options);
    const exec::ReferenceResult reference = exec::run_reference(graph, plan, data, {5, options.seed});
    REQUIRE(run.losses.size() == reference.losses.size());
    // The mean of 64 token losses near log 30, each from sums rounded to 2^-9: well below one hundredth.
    for (std::size_t i = 0; i < run.losses.size(); ++i) CHECK(std::abs(run.losses[i] - reference.losses[i]) < 1e-2 * std::abs(reference.losses[i]));
}

namespace {

// The plan of one rank's memory and edges, without running anything.
exec::cuda::RunPlan planned(const schedule::Plan& plan, const model::ModelGraph& graph, int rank) {
    struct Silent : exec::Communicator {
        int own = 0, ranks = 1;
        int rank() const override { return own; }
        int size() const override { return ranks; }
        Ticket start_send(int, exec::Tag, std::span<const float>, std::shared_ptr<const void>) override { return 0; }
        void finish(Ticket) override {}
        void receive(int, exec::Tag, std::span<float>, exec::Arrival) override {}
        void set_activity(const std::string*) override {}
    } communicator;
    communicator.own = rank;
    communicator.ranks = plan.layout.ranks();
    const schedule::Program program = tiny::program_of(plan, graph);
    const exec::RunPreparation preparation = exec::prepare_run(program, graph);
    const exec::InputReader inputs(graph, tiny::data_of(graph));
    const exec::RunOptions options;
    emulated::Emulated machine;
    return exec::cuda::plan_run({program, graph, inputs, options, communicator, preparation.stage_plans,
                                 preparation.activities[static_cast<std::size_t>(program.class_of_rank[static_cast<std::size_t>(rank)])]},
                                machine);
}

}  // namespace

TEST_CASE("arrays that live at one time never share memory, and the arena is little larger than what is held at most") {
    schedule::Plan plan = tiny::plan();
    plan.layout.pipeline = 2;
    const exec::cuda::RunPlan run = planned(plan, tiny::gpt(4), 0);
    CHECK(run.arena.bytes >= run.arena.largest_sum);
    // Offsets are multiples of 256 bytes: arrays of a few hundred bytes make that dear here, and here only.
    CHECK(run.arena.bytes < 2 * run.arena.largest_sum + 65536);
    CHECK(run.arena.sizes.size() == run.arena.offsets.size());
}

TEST_CASE("lowering orders every two instructions that touch the same array, one of them writing") {
    const model::ModelGraph graph = tiny::gpt(4);
    const auto check = [&](const char* what, const schedule::Plan& plan) {
        for (int rank = 0; rank < plan.layout.ranks(); ++rank) {
            const exec::cuda::RunPlan run = planned(plan, graph, rank);
            INFO(what << ", rank " << rank << ": " << run.arena.data_edges << " edges added");
            for (const auto& [first, second] : run.arena.unordered) UNSCOPED_INFO(first << " before " << second);
            CHECK(run.arena.data_edges == 0);
        }
    };
    for (const schedule::Sharding sharding : {schedule::Sharding::none, schedule::Sharding::optimizer, schedule::Sharding::gradients, schedule::Sharding::parameters}) {
        schedule::Plan plan = tiny::plan();
        plan.layout.data = 2;
        plan.sharding = sharding;
        check("data 2", plan);
        plan.layout.pipeline = 2;
        check("pipeline 2 x data 2", plan);
    }
    schedule::Plan plan = tiny::plan();
    plan.layout.tensor = 2;
    for (const bool along_sequences : {false, true}) {
        plan.sequence_parallel = along_sequences;
        check("tensor 2", plan);
    }
}
