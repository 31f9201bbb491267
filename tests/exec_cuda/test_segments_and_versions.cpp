// Sequences that pass through emulated GPUs in segments, and asynchronous schedules, whose micro-batches hold
// versions of the weights.
#include <catch2/catch.hpp>

#include "tests/exec_cuda/emulated_run.h"

namespace {

const exec::cuda::BackendSettings roomy{.expert_room = 4};  // tiny experts are uneven

// Tells what was allocated before the first step and after it.
class Counting : public emulated::Emulated {
public:
    void* allocate(std::size_t bytes) override { return ++allocations, Emulated::allocate(bytes); }
    int allocations = 0;
};

}  // namespace

TEST_CASE("segments of sequences train on emulated GPUs as whole sequences do") {
    schedule::Plan plan = tiny::plan();
    plan.schedule = "seq1f1b";
    plan.micro_batches = 2;
    plan.layout.pipeline = 2;
    plan.schedule_parameters = schedule::SegmentParameters{GENERATE(2, 4)};
    plan.attention = GENERATE(model::AttentionImplementation::flash, model::AttentionImplementation::unfused);
    INFO(core::to_toml(schedule::to_value(plan)));
    SECTION("positions, dropout everywhere") {
        tiny::check_equal(tiny::compare(plan, tiny::gpt(2, "dropout = 0.1\nattention_dropout = 0.1"), 2,
                                        emulated::backend(roomy)));
    }
    SECTION("rotary positions and groups of heads, after a rehearsal") {
        tiny::check_equal(tiny::compare(plan, tiny::llama(2), 2, emulated::backend(roomy, true)));
    }
    if (plan.passes_per_micro_batch() == 2) {
        SECTION("ALiBi") {
            tiny::check_equal(tiny::compare(plan, tiny::gpt(2, "position_encoding = 'alibi'"), 1,
                                            emulated::backend(roomy)));
        }
        SECTION("windows") {
            tiny::check_equal(tiny::compare(plan, tiny::llama(2, "window = 3"), 1, emulated::backend(roomy)));
        }
    }
    if (plan.passes_per_micro_batch() == 4) {
        SECTION("recomputed: keys of earlier segments are copies") {
            plan.recompute = GENERATE(schedule::Recompute::full, schedule::Recompute::selective);
            tiny::check_equal(tiny::compare(plan, tiny::gpt(2, "dropout = 0.1\nattention_dropout = 0.1"), 1,
                                            emulated::backend(roomy)));
        }
        SECTION("beside replicas, sharded, clipped") {
            plan.layout.data = 2;
            plan.sharding = GENERATE(schedule::Sharding::none, schedule::Sharding::optimizer,
                                     schedule::Sharding::gradients, schedule::Sharding::parameters);
            plan.optimizer.gradient_clipping = 0.1;
            tiny::check_equal(tiny::compare(plan, tiny::gpt(2), 1, emulated::backend(roomy)));
        }
        SECTION("with tensor and sequence parallelism") {
            plan.layout.tensor = 2;
            plan.sequence_parallel = GENERATE(false, true);
            plan.recompute = GENERATE(schedule::Recompute::none, schedule::Recompute::full);
            tiny::check_equal(
                tiny::compare(plan, tiny::llama(2, "dropout = 0.1"), 1, emulated::backend(roomy)));
        }
        SECTION("experts over ranks") {
            plan.layout.data = plan.layout.expert = 2;
            tiny::check_equal(tiny::compare(plan, tiny::mixtral(2), 1, emulated::backend(roomy)));
        }
    }
}

TEST_CASE("segments of sequences in bf16 on emulated GPUs stay near the CPU's") {
    schedule::Plan plan = tiny::plan();
    plan.schedule = "seq1f1b";
    plan.schedule_parameters = schedule::SegmentParameters{4};
    plan.layout.pipeline = 2;
    plan.precision = {core::DataType::bf16, core::DataType::bf16, core::DataType::bf16, true};
    const tiny::Comparison gpu = tiny::compare(plan, tiny::llama(2), 3, emulated::backend(roomy)),
                           cpu = tiny::compare(plan, tiny::llama(2), 3);
    // Logits near 3.4 of values rounded to 2^-9, on both: some units in the last place apart.
    for (std::size_t i = 0; i < gpu.run.losses.size(); ++i)
        CHECK(std::abs(gpu.run.losses[i] - cpu.run.losses[i]) < 4e-3 * cpu.run.losses[i]);
}

TEST_CASE("asynchronous schedules train on emulated GPUs as an emulation with the same staleness does") {
    schedule::Plan plan = tiny::plan();
    plan.schedule = GENERATE(as<std::string>{}, "pipedream", "pipedream-2bw");
    plan.schedule_parameters = schedule::GroupParameters{plan.schedule == "pipedream" ? 0 : 4};
    plan.micro_batch = 1;
    plan.micro_batches = 7;
    plan.layout.pipeline = GENERATE(1, 2, 4);
    plan.optimizer.learning_rate =
        0.01;  // seven updates a step at 0.1 leave the region where rounding stays small
    INFO(core::to_toml(schedule::to_value(plan)));
    SECTION("with momentum, two steps") {
        plan.optimizer.momentum = 0.5;
        tiny::check_equal(tiny::compare(plan, tiny::llama(4), 2, emulated::backend(roomy)));
    }
    if (plan.layout.pipeline == 2) {
        SECTION("by Adam and by LAMB, whose corrections count updates") {
            plan.optimizer.kind = GENERATE(schedule::OptimizerKind::adam, schedule::OptimizerKind::adamw,
                                           schedule::OptimizerKind::lamb);
            plan.optimizer.epsilon = 1e-2;  // of the size of gradients, whose rounding is not magnified then
            const tiny::Comparison comparison =
                tiny::compare(plan, tiny::llama(2), 2, emulated::backend(roomy, true));
            tiny::check_equal(comparison);
            CHECK(comparison.parameters < 1e-5);
        }
        SECTION("beside replicas") {
            plan.layout.data = 2;
            tiny::check_equal(tiny::compare(plan, tiny::llama(2), 1, emulated::backend(roomy)));
        }
        SECTION("with tensor and sequence parallelism, recomputed") {
            plan.layout.tensor = 2;
            plan.sequence_parallel = true;
            plan.recompute = schedule::Recompute::full;
            tiny::check_equal(
                tiny::compare(plan, tiny::llama(2, "dropout = 0.1"), 1, emulated::backend(roomy)));
        }
        SECTION("experts over ranks, offloaded") {
            plan.layout.data = plan.layout.expert = 2;
            plan.offload = schedule::Offload::host;
            plan.activation_loading_horizon = 1;
            tiny::check_equal(tiny::compare(plan, tiny::mixtral(2), 1, emulated::backend(roomy)));
        }
    }
}

TEST_CASE("versions of weights lie in the arena, whose size is the Program's: steps allocate nothing") {
    schedule::Plan plan = tiny::plan();
    plan.schedule = "pipedream";
    plan.micro_batches = 8;
    plan.micro_batch = 1;
    plan.layout.pipeline = 4;
    plan.optimizer.learning_rate = 0.01;
    const model::ModelGraph graph = tiny::llama(4);
    std::vector<std::shared_ptr<Counting>> machines(4);
    std::vector<int> before(4);
    const tiny::Comparison comparison =
        tiny::compare(plan, graph, 3, [&](const exec::BackendRequest& request) {
            const auto rank = static_cast<std::size_t>(request.communicator.rank());
            machines[rank] = std::make_shared<Counting>();
            auto made = exec::cuda::make_backend(request, machines[rank],
                                                 std::make_shared<emulated::Messages>(request.communicator));
            before[rank] = machines[rank]->allocations;
            return made;
        });
    tiny::check_equal(comparison);
    // What is held at most is what the Program's own buffers add up to, on every rank: 4 - r versions on rank
    // r (arXiv 1806.03377).
    const schedule::Program program = tiny::program_of(plan, graph);
    for (std::size_t rank = 0; rank < 4; ++rank) {
        CHECK(machines[rank]->allocations == before[rank]);
        const schedule::RankProgram& list =
            program.classes[static_cast<std::size_t>(program.class_of_rank[rank])];
        double held = 0, most = 0;
        for (const schedule::Buffer& buffer : list.buffers)
            if (buffer.is_persistent && buffer.kind == schedule::MemoryKind::parameters)
                held += buffer.bytes.value;
        const double one = most = held;
        for (const schedule::Instruction& instruction : list.instructions) {
            for (const std::uint32_t buffer : list.allocates(instruction))
                held += list.buffers[buffer].kind == schedule::MemoryKind::parameters
                            ? list.buffers[buffer].bytes.value
                            : 0;
            most = std::max(most, held);
            for (const std::uint32_t buffer : list.frees(instruction))
                held -= list.buffers[buffer].kind == schedule::MemoryKind::parameters
                            ? list.buffers[buffer].bytes.value
                            : 0;
        }
        CHECK(most == one * (4.0 - static_cast<double>(rank)));
        CHECK(comparison.run.memory.at_peak[rank][static_cast<std::size_t>(schedule::MemoryKind::parameters)]
                  .value <= most);
        CHECK(emulated::planned(plan, graph, static_cast<int>(rank)).arena.data_edges == 0);
    }
}

TEST_CASE("the Program orders what segments of sequences touch") {
    schedule::Plan plan = tiny::plan();
    plan.schedule = "seq1f1b";
    plan.schedule_parameters = schedule::SegmentParameters{4};
    plan.layout.pipeline = 2;
    plan.recompute = GENERATE(schedule::Recompute::none, schedule::Recompute::full);
    for (int rank = 0; rank < 2; ++rank)
        CHECK(emulated::planned(plan, tiny::gpt(2), rank).arena.data_edges == 0);
}
