// The whole CUDA backend without a GPU: planning, arena, edges, precision and our kernels, with libraries
// replaced by loops.
#include <catch2/catch.hpp>

#include <cmath>
#include <thread>

#include "core/diagnostics.h"
#include "exec/cpu/thread_communicator.h"
#include "exec/cuda/profile/exchange_profile.h"
#include "schedule/pipeline/registry.h"
#include "tests/exec_cuda/emulated_run.h"

TEST_CASE("on one emulated GPU a model trains as the reference does") {
    schedule::Plan plan = tiny::plan();
    const exec::BackendMaker emulated = emulated::backend();
    SECTION("GPT") { tiny::check_equal(tiny::compare(plan, tiny::gpt(), 2, emulated)); }
    SECTION("GPT with dropout") {
        tiny::check_equal(
            tiny::compare(plan, tiny::gpt(2, "dropout = 0.2\nattention_dropout = 0.3"), 2, emulated));
    }
    SECTION("Llama") { tiny::check_equal(tiny::compare(plan, tiny::llama(), 2, emulated)); }
    SECTION("unfused attention") {
        plan.attention = model::AttentionImplementation::unfused;
        tiny::check_equal(
            tiny::compare(plan, tiny::gpt(2, "dropout = 0.2\nattention_dropout = 0.3"), 2, emulated));
        tiny::check_equal(tiny::compare(plan, tiny::llama(2), 2, emulated));
    }
    SECTION("fused cross-entropy") {
        plan.fused_cross_entropy = true;
        tiny::check_equal(tiny::compare(plan, tiny::gpt(2), 2, emulated));
    }
}

TEST_CASE(
    "an approximate GELU, residuals and gradients of biases go along with the products, where the machine "
    "has that, and nothing else changes") {
    schedule::Plan plan = tiny::plan();
    plan.micro_batches = 2;
    const std::string approximate = "activation = 'gelu_tanh'\n";
    const auto with = std::make_shared<emulated::Emulated>(true),
               without = std::make_shared<emulated::Emulated>(false);
    SECTION("one rank") {
        constexpr int layers = 2, steps = 2, micro_batches = 2;
        const model::ModelGraph graph = tiny::gpt(layers, approximate);
        tiny::check_equal(tiny::compare(plan, graph, steps, emulated::backend_on(with)));
        // A layer and micro-batch: its GELU there and back, and four biases. Planning multiplies nothing.
        CHECK(with->fused() == steps * micro_batches * layers * (2 + 4));
        CHECK(with->added() == steps * micro_batches * layers * 2);
        tiny::check_equal(tiny::compare(plan, graph, steps, emulated::backend_on(without)));
        CHECK(without->fused() == 0);
        CHECK(without->added() == with->added());
        // The exact GELU is not what the library computes.
        const auto exact = std::make_shared<emulated::Emulated>(true);
        tiny::check_equal(tiny::compare(plan, tiny::gpt(layers, "activation = 'gelu'\n"), steps,
                                        emulated::backend_on(exact)));
        CHECK(exact->fused() == steps * micro_batches * layers * 4);
    }
    SECTION("dropout takes the residual; attention and layers beside one another") {
        tiny::check_equal(tiny::compare(plan, tiny::gpt(2, approximate + "dropout = 0.2\n"), 2,
                                        emulated::backend_on(with)));
        CHECK(with->added() == 0);
        tiny::check_equal(tiny::compare(plan,
                                        tiny::model_of("family = 'gpt-neox'\nhidden = 16\nlayers = 2\nheads "
                                                       "= 4\nvocabulary = 30\nmax_positions = 8\n"
                                                       "sequence_length = 8\nactivation = 'gelu_tanh'\n"),
                                        2, emulated::backend()));
    }
    SECTION("layers that run again, and every layer a stage of its own") {
        for (const schedule::Recompute recompute :
             {schedule::Recompute::full, schedule::Recompute::selective}) {
            plan.recompute = recompute;
            tiny::check_equal(tiny::compare(plan, tiny::gpt(2, approximate), 2, emulated::backend()));
        }
        plan.recompute_modules = {schedule::RecomputeModule::layernorm,
                                  schedule::RecomputeModule::activation};
        tiny::check_equal(tiny::compare(plan, tiny::gpt(2, approximate), 2, emulated::backend()));
        plan.recompute = schedule::Recompute::full;
        plan.recompute_layers = 1;
        tiny::check_equal(tiny::compare(plan, tiny::gpt(3, approximate), 2, emulated::backend()));
        plan.recompute_layers = 0;
        plan.recompute_layers_by_stage = {1, 0};
        plan.layout.pipeline = 2;
        plan.micro_batches = 4;
        tiny::check_equal(tiny::compare(plan, tiny::gpt(3, approximate), 2, emulated::backend()));
        plan.recompute_layers_by_stage = {};
        plan.recompute = schedule::Recompute::none;
        tiny::check_equal(tiny::compare(plan, tiny::gpt(2, approximate), 2, emulated::backend()));
    }
    SECTION("gradients of weights in instructions of their own") {
        plan.layout.pipeline = 2;
        plan.micro_batches = 4;
        plan.schedule = "zb-h1";
        tiny::check_equal(tiny::compare(plan, tiny::gpt(2, approximate), 2, emulated::backend()));
    }
    SECTION("tensor parallelism leaves residuals to the exchange") {
        plan.layout.tensor = 2;
        tiny::check_equal(tiny::compare(plan, tiny::gpt(2, approximate), 2, emulated::backend()));
    }
    SECTION("sharded parameters and gradients") {
        plan.layout.data = 2;
        plan.sharding = schedule::Sharding::parameters;
        tiny::check_equal(tiny::compare(plan, tiny::gpt(2, approximate), 2, emulated::backend()));
    }
}

TEST_CASE("whoever writes all of a part of what is to be cleared takes it over, and the rest is cleared") {
    using exec::cuda::PendingZeros;
    char memory[64];
    PendingZeros zeros;
    CHECK_FALSE(zeros.take(memory, 8));
    zeros.add(memory, 32);
    zeros.add(memory + 32, 16);
    CHECK(zeros.take(memory + 8, 8));
    CHECK_FALSE(zeros.take(memory + 8, 8));
    CHECK_FALSE(zeros.take(memory + 4, 8));    // half of it is taken
    CHECK_FALSE(zeros.take(memory + 24, 16));  // of two arrays
    CHECK(zeros.cut(memory + 4, 16) == std::vector<PendingZeros::Piece>{{memory + 4, 4}, {memory + 16, 4}});
    CHECK(zeros.cut_around(memory + 22) == std::vector<PendingZeros::Piece>{{memory + 20, 12}});
    CHECK(zeros.cut_all() == std::vector<PendingZeros::Piece>{{memory, 4}, {memory + 32, 16}});
    CHECK(zeros.cut_all().empty());
    zeros.add(memory, 32);
    zeros.add(memory + 8, 8);  // again: still once
    CHECK(zeros.cut(memory, 64) ==
          std::vector<PendingZeros::Piece>{{memory, 8}, {memory + 8, 8}, {memory + 16, 16}});
}

TEST_CASE("emulated GPUs train as the reference does with every parallelism") {
    schedule::Plan plan = tiny::plan();
    const exec::BackendMaker emulated = emulated::backend();
    const model::ModelGraph graph = tiny::gpt(4);
    SECTION("pipelines: every fourth schedule that has a flush, since an emulated step takes long") {
        int number = 0;
        for (const schedule::PipelineSchedule& candidate : schedule::pipeline_schedules()) {
            if (candidate.is_forward_only || candidate.is_asynchronous || candidate.is_bidirectional ||
                candidate.cuts_sequences())
                continue;
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
        for (const schedule::Sharding sharding :
             {schedule::Sharding::none, schedule::Sharding::optimizer, schedule::Sharding::gradients,
              schedule::Sharding::parameters}) {
            plan.sharding = sharding;
            INFO(schedule::name_of(sharding));
            tiny::check_equal(tiny::compare(plan, graph, 1, emulated));
        }
    }
    SECTION("tensor parallelism, along sequences too, with recomputation") {
        plan.layout.tensor = 2;
        for (const bool along_sequences : {false, true})
            for (const schedule::Recompute recompute :
                 {schedule::Recompute::none, schedule::Recompute::full}) {
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
    options.make_backend = emulated::backend();
    const exec::RunResult run = exec::run(program, graph, data, options);
    const exec::ReferenceResult reference = exec::run_reference(graph, plan, data, {5, options.seed});
    REQUIRE(run.losses.size() == reference.losses.size());
    // The mean of 64 token losses near log 30, each from sums rounded to 2^-9: well below one hundredth.
    for (std::size_t i = 0; i < run.losses.size(); ++i)
        CHECK(std::abs(run.losses[i] - reference.losses[i]) < 1e-2 * std::abs(reference.losses[i]));
}

TEST_CASE("emulated GPUs clip gradients by the norm of all of them") {
    schedule::Plan plan = tiny::plan();
    plan.optimizer.gradient_clipping = 0.05;  // below every norm that occurs
    const model::ModelGraph graph = tiny::gpt(2);
    SECTION("one rank") {}
    SECTION("pipeline 2, tied embedding") { plan.layout.pipeline = 2; }
    SECTION("tensor 2") { plan.layout.tensor = 2; }
    SECTION("data 2, sharded parameters") {
        plan.layout.data = 2;
        plan.sharding = schedule::Sharding::parameters;
    }
    tiny::check_equal(tiny::compare(plan, graph, 2, emulated::backend()));
}

TEST_CASE(
    "emulated GPUs train by LAMB as the reference does, however parameters and their state are divided") {
    schedule::Plan plan = tiny::plan();
    plan.optimizer.kind = schedule::OptimizerKind::lamb;
    plan.optimizer.learning_rate = 0.02;
    plan.optimizer.weight_decay = 0.1;
    plan.optimizer.epsilon = 1e-3;  // of the size of gradients, whose rounding is not magnified then
    plan.micro_batches = 2;
    const model::ModelGraph graph = tiny::gpt(2);
    const auto check = [&](const model::ModelGraph& model, int steps) {
        const tiny::Comparison comparison = tiny::compare(plan, model, steps, emulated::backend());
        tiny::check_equal(comparison);
        CHECK(comparison.parameters < 1e-5);
    };
    SECTION("one rank, with and without clipping") {
        plan.optimizer.gradient_clipping = GENERATE(0.0, 0.05);
        check(graph, 3);
    }
    SECTION("pipeline 2 x tensor 2, tied embedding, clipped") {
        plan.layout.pipeline = plan.layout.tensor = 2;
        plan.optimizer.gradient_clipping = 0.05;
        check(graph, 2);
    }
    SECTION("tensor 2 along sequences") {
        plan.layout.tensor = 2;
        plan.sequence_parallel = true;
        check(graph, 2);
    }
    SECTION("data 2, in every sharding, in several buckets") {
        plan.layout.data = 2;
        plan.gradient_bucket = core::bytes(3000);
        for (const schedule::Sharding sharding :
             {schedule::Sharding::none, schedule::Sharding::optimizer, schedule::Sharding::gradients,
              schedule::Sharding::parameters}) {
            plan.sharding = sharding;
            INFO(schedule::name_of(sharding));
            check(graph, 2);
        }
    }
    SECTION("experts over ranks, sharded") {
        plan.layout.data = 4;
        plan.layout.expert = GENERATE(2, 4);
        plan.sharding = GENERATE(schedule::Sharding::none, schedule::Sharding::optimizer);
        check(tiny::llama(2, "experts = 4\nexperts_per_token = 2"), 1);
    }
}

TEST_CASE("an emulated GPU that evaluates drops nothing and has the reference's losses") {
    schedule::Plan plan = tiny::plan();
    plan.schedule = "forward-only";
    plan.layout.pipeline = 2;
    tiny::check_equal(
        tiny::compare(plan, tiny::gpt(2, "dropout = 0.2\nattention_dropout = 0.3"), 1, emulated::backend()));
}

namespace {

schedule::Program fp16_program(schedule::Plan plan, const model::ModelGraph& graph) {
    plan.precision = {core::DataType::fp16, core::DataType::fp16, core::DataType::fp16, true};
    core::Diagnostics diagnostics;
    plan.partition = schedule::complete_partition(plan, graph).value();
    return schedule::lower(plan, graph, schedule::make_schedule(plan, diagnostics).value());
}

// In its first step one weight's gradient is beyond every number of fp16.
class Overflowing : public emulated::Emulated {
public:
    void product(exec::cuda::Stream stream, const exec::cuda::Product& p) override {
        Emulated::product(stream, p);
        if (p.transpose_a && !has_overflown_) {
            emulated::set(p.out, p.c, 0, INFINITY);
            has_overflown_ = true;
        }
    }

private:
    bool has_overflown_ = false;
};

}  // namespace

TEST_CASE(
    "in fp16 an overflow on one rank leaves the update out on all, and training goes on with half the "
    "scale") {
    const model::ModelGraph graph = tiny::gpt(2);
    schedule::Plan plan = tiny::plan();
    SECTION("pipeline 2") { plan.layout.pipeline = 2; }
    SECTION("data 2, sharded optimizer: parameters are gathered after each update") {
        plan.layout.data = 2;
        plan.sharding = schedule::Sharding::optimizer;
    }
    SECTION("clipped") {
        plan.layout.pipeline = 2;
        plan.optimizer.gradient_clipping = 1.0;
    }
    SECTION("LAMB, whose norms come before the update") {
        plan.layout.data = 2;
        plan.sharding = schedule::Sharding::optimizer;
        plan.optimizer.kind = schedule::OptimizerKind::lamb;
        plan.optimizer.epsilon = 1e-3;
    }
    const schedule::Program program = fp16_program(plan, graph);
    const auto data = tiny::data_of(graph);
    const auto train = [&](int steps, double learning_rate, bool overflows) {
        schedule::Program own = program;
        own.plan.optimizer.learning_rate = learning_rate;
        exec::RunOptions options;
        options.steps = steps;
        options.keeps_state = true;
        options.time_limit = core::seconds(20);
        options.make_backend = [overflows](const exec::BackendRequest& request) {
            const bool is_bad = overflows && request.communicator.rank() == 1;
            std::shared_ptr<exec::cuda::Machine> machine =
                is_bad ? std::make_shared<Overflowing>() : std::make_shared<emulated::Emulated>();
            return exec::cuda::make_backend(request, std::move(machine),
                                            std::make_shared<emulated::Messages>(request.communicator));
        };
        return exec::run(own, graph, data, options);
    };
    const exec::RunResult start = train(1, 0, false), bad = train(1, 0.1, true);
    for (std::size_t p = 0; p < graph.parameters.size(); ++p) {
        INFO(graph.parameters[p].name);
        CHECK(bad.parameters[p] == start.parameters[p]);
    }
    // The next step updates.
    const exec::RunResult later = train(2, 0.1, true);
    CHECK(std::isfinite(later.losses[1]));
    CHECK(later.parameters[0] != start.parameters[0]);
    // Without an overflow losses follow the reference within fp16's rounding.
    const exec::RunResult run = train(2, 0.1, false);
    const exec::ReferenceResult reference =
        exec::run_reference(graph, program.plan, data, {2, exec::RunOptions{}.seed});
    for (std::size_t i = 0; i < run.losses.size(); ++i)
        CHECK(std::abs(run.losses[i] - reference.losses[i]) < 2e-3 * std::abs(reference.losses[i]));
}

TEST_CASE("exchange is measured for every operation and size in the groups that a rank is in") {
    exec::cpu::ThreadNetwork network(3, core::seconds(20), false);
    std::vector<std::vector<exec::cuda::ExchangeRate>> rates(3);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank)
        threads.emplace_back([&, rank] {
            const auto communicator = network.communicator(rank);
            emulated::Emulated machine;
            emulated::Messages exchange(*communicator);
            rates[static_cast<std::size_t>(rank)] = exec::cuda::profile_exchange(
                machine, exchange, rank, {{0, 1, 2}, {0, 1}}, {core::bytes(192), core::bytes(4800)});
        });
    for (std::thread& thread : threads) thread.join();
    CHECK(rates[0].size() == 2 * 4 + 2 * 5);  // two sizes; among two ranks messages too
    CHECK(rates[2].size() == 2 * 4);
    for (const exec::cuda::ExchangeRate& rate : rates[0]) CHECK(rate.time.value > 0);
    // nccl-tests, doc/PERFORMANCE.md: of an all-reduce over three ranks every link carries 2 (3 - 1) / 3 of
    // the array.
    const exec::cuda::ExchangeRate reduced{"all_reduce", 3, core::bytes(3e9), core::seconds(1)};
    CHECK(reduced.bus_bandwidth().value == Approx(4e9));
}

namespace {

// The plan of one rank's memory and edges, without running anything.
}  // namespace

TEST_CASE(
    "arrays that live at one time never share memory, and the arena is little larger than what is held at "
    "most") {
    schedule::Plan plan = tiny::plan();
    plan.layout.pipeline = 2;
    const exec::cuda::RunPlan run = emulated::planned(plan, tiny::gpt(4), 0);
    CHECK(run.arena.bytes >= run.arena.largest_sum);
    // Offsets are multiples of 256 bytes: arrays of a few hundred bytes make that dear here, and here only.
    CHECK(run.arena.bytes < 2 * run.arena.largest_sum + 65536);
    CHECK(run.arena.sizes.size() == run.arena.offsets.size());
}

TEST_CASE("lowering orders every two instructions that touch the same array, one of them writing") {
    const model::ModelGraph graph = tiny::gpt(4);
    const auto check = [&](const char* what, const schedule::Plan& plan) {
        for (int rank = 0; rank < plan.layout.ranks(); ++rank) {
            const exec::cuda::RunPlan run = emulated::planned(plan, graph, rank);
            INFO(what << ", rank " << rank << ": " << run.arena.data_edges << " edges added");
            for (const auto& [first, second] : run.arena.unordered)
                UNSCOPED_INFO(first << " before " << second);
            CHECK(run.arena.data_edges == 0);
        }
    };
    for (const schedule::Sharding sharding :
         {schedule::Sharding::none, schedule::Sharding::optimizer, schedule::Sharding::gradients,
          schedule::Sharding::parameters}) {
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
