// Sequences and experts divided over emulated GPUs, activations that wait on the host, and what is done
// before the first step.
#include <catch2/catch.hpp>

#include <algorithm>
#include <array>
#include <deque>
#include <functional>
#include <mutex>

#include "core/errors.h"
#include "tests/exec_cuda/emulated_run.h"

namespace {

const exec::cuda::BackendSettings roomy{.expert_room = 4};  // tiny experts are uneven

}  // namespace

TEST_CASE("sequences divided over emulated GPUs train as whole ones") {
    schedule::Plan plan = tiny::plan();
    plan.micro_batches = 2;
    plan.layout.data = plan.layout.context = GENERATE(2, 4);
    plan.attention = GENERATE(model::AttentionImplementation::flash, model::AttentionImplementation::unfused);
    INFO(core::to_toml(schedule::to_value(plan)));
    SECTION("alone") {
        tiny::check_equal(tiny::compare(plan, tiny::gpt(2), 1, emulated::backend(roomy)));
        tiny::check_equal(tiny::compare(plan, tiny::llama(2, "window = 3"), 1, emulated::backend(roomy)));
        tiny::check_equal(
            tiny::compare(plan, tiny::gpt(2, "position_encoding = 'alibi'"), 1, emulated::backend(roomy)));
    }
    if (plan.layout.context > 2) return;
    SECTION("with dropout, beside replicas, sharded") {
        plan.layout.data *= 2;
        plan.sharding = schedule::Sharding::parameters;
        plan.optimizer.gradient_clipping = 0.1;
        tiny::check_equal(tiny::compare(plan, tiny::gpt(2, "dropout = 0.1\nattention_dropout = 0.1"), 1,
                                        emulated::backend(roomy)));
    }
    SECTION("with tensor and sequence parallelism") {
        plan.layout.tensor = 2;
        plan.sequence_parallel = true;
        tiny::check_equal(tiny::compare(plan, tiny::llama(2), 1, emulated::backend(roomy)));
    }
    SECTION("in a pipeline with split backward, recomputed") {
        plan.layout.pipeline = 2;
        plan.schedule = "zb-h1";
        tiny::check_equal(tiny::compare(plan, tiny::gpt(2), 1, emulated::backend(roomy)));
        plan.schedule = "1f1b";
        plan.recompute = schedule::Recompute::full;
        tiny::check_equal(tiny::compare(plan, tiny::gpt(2), 1, emulated::backend(roomy)));
    }
}

TEST_CASE("emulated GPUs that exchange heads for tokens train as one with whole sequences") {
    schedule::Plan plan = tiny::plan();
    plan.micro_batches = 2;
    plan.layout.data = plan.layout.context = 2;
    plan.context_communication = schedule::ContextCommunication::all_to_all;
    plan.attention = GENERATE(model::AttentionImplementation::flash, model::AttentionImplementation::unfused);
    model::ModelGraph graph = tiny::gpt(2, "dropout = 0.1\nattention_dropout = 0.1");
    SECTION("alone") {
        graph = GENERATE(tiny::gpt(2, "position_encoding = 'alibi'"), tiny::llama(2, "window = 3"));
    }
    SECTION("a head a rank, sharded") {
        plan.layout.data = plan.layout.context = 4;
        plan.sharding = schedule::Sharding::parameters;
        plan.optimizer.gradient_clipping = 0.1;
    }
    SECTION("with tensor and sequence parallelism") {
        plan.layout.tensor = 2;
        plan.sequence_parallel = true;
    }
    SECTION("in a pipeline with split backward") {
        plan.layout.pipeline = 2;
        plan.schedule = "zb-h1";
    }
    SECTION("in a pipeline, recomputed") {
        plan.layout.pipeline = 2;
        plan.recompute = schedule::Recompute::full;
        graph = tiny::llama(2);
    }
    SECTION("offloaded") {
        plan.schedule = "gpipe";
        plan.offload = schedule::Offload::host;
        plan.activation_loading_horizon = 1;
    }
    INFO(graph.family << "\n" << core::to_toml(schedule::to_value(plan)));
    tiny::check_equal(tiny::compare(plan, graph, 1, emulated::backend(roomy)));
}

namespace {

// Attention of the library wherever it takes it; `calls` is how many times it was asked in all.
exec::BackendMaker with_fused_attention(int& calls, bool with_its_masks = false) {
    static std::mutex mutex;
    struct Fusing : emulated::Emulated {
        explicit Fusing(int& calls) : calls_(calls) { fuses_attention = true; }
        ~Fusing() override {
            const std::lock_guard lock(mutex);
            calls_ += fused_attentions();
        }
        int& calls_;
    };
    return [&calls, with_its_masks](const exec::BackendRequest& request) {
        exec::cuda::BackendSettings settings = roomy;
        settings.uses_library_masks = with_its_masks;
        return exec::cuda::make_backend(request, std::make_shared<Fusing>(calls),
                                        std::make_shared<emulated::Messages>(request.communicator), settings);
    };
}

}  // namespace

TEST_CASE("emulated GPUs whose keys pass from rank to rank train as one with whole sequences") {
    schedule::Plan plan = tiny::plan();
    plan.micro_batches = 2;
    plan.layout.data = plan.layout.context = 2;
    plan.context_communication = schedule::ContextCommunication::ring;
    model::ModelGraph graph = tiny::gpt(2, "dropout = 0.1\nattention_dropout = 0.1");
    SECTION("alone") {
        graph = GENERATE(tiny::gpt(2, "position_encoding = 'alibi'"), tiny::llama(2),
                         tiny::gpt(2, "causal = false"));
    }
    SECTION("four ranks, sharded") {
        plan.layout.data = plan.layout.context = 4;
        plan.sharding = schedule::Sharding::parameters;
        plan.optimizer.gradient_clipping = 0.1;
    }
    SECTION("with tensor and sequence parallelism") {
        plan.layout.tensor = 2;
        plan.sequence_parallel = true;
    }
    SECTION("in a pipeline with split backward") {
        plan.layout.pipeline = 2;
        plan.schedule = "zb-h1";
    }
    SECTION("recomputed, offloaded") {
        plan.recompute = GENERATE(schedule::Recompute::selective, schedule::Recompute::full);
        plan.schedule = "gpipe";
        plan.offload = schedule::Offload::host;
        plan.activation_loading_horizon = 1;
    }
    INFO(core::to_toml(schedule::to_value(plan)));
    tiny::check_equal(tiny::compare(plan, graph, 1, emulated::backend(roomy)));
}

TEST_CASE(
    "the library's attention trains whole sequences, parts of ranks and segments as the reference does") {
    schedule::Plan plan = tiny::plan();
    plan.micro_batches = 2;
    int calls = 0;
    SECTION("whole") {
        tiny::check_equal(tiny::compare(plan, tiny::llama(2), 2, with_fused_attention(calls)));
    }
    SECTION("divided, turned by rotary positions or not") {
        plan.layout.data = plan.layout.context = GENERATE(2, 4);
        plan.context_communication =
            plan.layout.context == 2
                ? GENERATE(schedule::ContextCommunication::all_gather,
                           schedule::ContextCommunication::all_to_all, schedule::ContextCommunication::ring)
                : GENERATE(schedule::ContextCommunication::all_gather, schedule::ContextCommunication::ring);
        tiny::check_equal(tiny::compare(plan, tiny::llama(2), 1, with_fused_attention(calls)));
        tiny::check_equal(tiny::compare(plan, tiny::gpt(2, "dropout = 0.1"), 1, with_fused_attention(calls)));
    }
    SECTION("segments, recomputed") {
        plan.schedule = "seq1f1b";
        plan.layout.pipeline = 2;
        plan.schedule_parameters = schedule::SegmentParameters{4};
        plan.recompute = GENERATE(schedule::Recompute::none, schedule::Recompute::full);
        tiny::check_equal(tiny::compare(plan, tiny::llama(2), 1, with_fused_attention(calls)));
        tiny::check_equal(tiny::compare(plan, tiny::gpt(2), 1, with_fused_attention(calls)));
    }
    CHECK(calls > 0);
}

TEST_CASE(
    "the library's own masks are the same when a layer runs again, others on every rank, and used where the "
    "reference need not be met") {
    schedule::Plan plan = tiny::plan();
    plan.micro_batches = 2;
    const model::ModelGraph graph = tiny::gpt(2, "attention_dropout = 0.3");
    int exact = 0, own = 0;
    const tiny::Comparison as_reference = tiny::compare(plan, graph, 3, with_fused_attention(exact));
    tiny::check_equal(as_reference);
    CHECK(exact == 0);
    const tiny::Comparison kept = tiny::compare(plan, graph, 3, with_fused_attention(own, true));
    CHECK(own > 0);
    CHECK(kept.losses > 1e-4);
    plan.recompute = schedule::Recompute::full;
    CHECK(tiny::compare(plan, graph, 3, with_fused_attention(own, true)).run.losses == kept.run.losses);
    // Heads on two ranks: other masks than on one, and than each other's.
    plan.layout.tensor = 2;
    CHECK(tiny::compare(plan, graph, 3, with_fused_attention(own, true)).run.losses != kept.run.losses);
}

TEST_CASE("activations of an emulated GPU wait in the host's memory or on disk and come back as they were") {
    schedule::Plan plan = tiny::plan();
    plan.schedule = "gpipe";
    plan.offload = GENERATE(schedule::Offload::host, schedule::Offload::disk);
    plan.offload_bandwidth = core::gigabytes_per_second(1);
    plan.activation_loading_horizon = GENERATE(1, 4);
    const model::ModelGraph graph = tiny::gpt(3, "dropout = 0.1\nattention_dropout = 0.1");
    SECTION("one rank") {}
    SECTION("selective recomputation") { plan.recompute = schedule::Recompute::selective; }
    SECTION("a pipeline with split backward") {
        plan.layout.pipeline = 2;
        plan.schedule = "zb-h1";
    }
    SECTION("sharded parameters") {
        plan.layout.data = 2;
        plan.sharding = schedule::Sharding::parameters;
    }
    INFO(core::to_toml(schedule::to_value(plan)));
    const tiny::Comparison comparison = tiny::compare(plan, graph, 2, emulated::backend(roomy));
    tiny::check_equal(comparison);
    plan.offload = schedule::Offload::none;
    CHECK(comparison.run.memory.peak[0] <
          tiny::compare(plan, graph, 1, emulated::backend(roomy)).run.memory.peak[0]);
}

namespace {

// Work of a stream waits until somebody asks, and then goes as late as events allow: the streams last in
// number first.
class Lazy : public emulated::Emulated {
public:
    void record(exec::cuda::Event event, exec::cuda::Stream stream) override {
        later(stream, [this, event, stream] { Emulated::record(event, stream); }, {}, event);
    }
    void wait(exec::cuda::Stream stream, exec::cuda::Event event) override {
        later(stream, [] {}, event, {});
    }
    void upload(exec::cuda::Stream stream, void* to, const void* from, std::size_t bytes) override {
        later(stream, [=] { std::memcpy(to, from, bytes); }, {}, {});
    }
    void download(exec::cuda::Stream stream, void* to, const void* from, std::size_t bytes) override {
        upload(stream, to, from, bytes);
    }
    void call(exec::cuda::Stream stream, void (*function)(void*), void* argument) override {
        later(stream, [=] { function(argument); }, {}, {});
    }
    void synchronize() override {
        for (bool moves = true; moves;) {
            moves = false;
            for (auto queue = queues_.rbegin(); queue != queues_.rend(); ++queue)
                while (!queue->second.empty() &&
                       (!queue->second.front().after ||
                        queue->second.front().after_count <= recorded_[queue->second.front().after])) {
                    Work work = std::move(queue->second.front());
                    queue->second.pop_front();
                    work.does();
                    if (work.records) ++recorded_[work.records];
                    moves = true;
                }
        }
        for (const auto& [ignored, queue] : queues_)
            core::require(queue.empty(), "nothing waits for what never happens");
    }

private:
    struct Work {
        std::function<void()> does;
        exec::cuda::Event after = nullptr, records = nullptr;
        int after_count = 0;
    };
    void later(exec::cuda::Stream stream, std::function<void()> does, exec::cuda::Event after,
               exec::cuda::Event records) {
        queues_[stream].push_back({std::move(does), after, records, after ? asked_[after] : 0});
        if (records) ++asked_[records];
    }
    std::map<exec::cuda::Stream, std::deque<Work>> queues_;
    std::map<exec::cuda::Event, int> asked_, recorded_;
};

}  // namespace

TEST_CASE(
    "arrays that go to disk and come back are whole however late streams get to them, and places of all are "
    "used again") {
    const bool disk_is_slow = GENERATE(true, false);
    Lazy machine;
    const exec::cuda::Stream copies = machine.message_stream(disk_is_slow ? 2 : 1),
                             disk = machine.message_stream(disk_is_slow ? 1 : 2);
    exec::cuda::DiskTransfers transfers(machine, disk, 0, 20 * 64, 64);
    for (int step = 0; step < 3; ++step) {
        transfers.begin_step();
        std::vector<std::array<char, 64>> arrays(10), back(10);
        for (std::size_t i = 0; i < arrays.size(); ++i) {
            arrays[i].fill(static_cast<char>(10 * step + static_cast<int>(i)));
            transfers.store(copies, 1, 64 * i, arrays[i].data(), 64 - i);
            if (i % 3 == 2)
                transfers.load(copies, 2, 64 * (i - 1), back[i - 1].data(),
                               64 - (i - 1));  // amid those that leave
        }
        for (std::size_t i = arrays.size(); i-- > 0;)
            if (i % 3 != 1) transfers.load(copies, 3, 64 * i, back[i].data(), 64 - i);
        machine.synchronize();
        for (std::size_t i = 0; i < arrays.size(); ++i)
            if (i < 9)
                CHECK(std::equal(arrays[i].begin(), arrays[i].begin() + static_cast<std::ptrdiff_t>(64 - i),
                                 back[i].begin()));
        CHECK_FALSE(transfers.failure());
    }
}

TEST_CASE("what the disk refuses is told with the instruction that asked") {
    emulated::Emulated machine;
    exec::cuda::DiskTransfers transfers(machine, machine.message_stream(0), 0, 0, 64);
    transfers.begin_step();
    char into[64];
    transfers.load(machine.stream(schedule::Stream::copy), 7, 1 << 20, into, 64);
    REQUIRE(transfers.failure());
    CHECK(transfers.failure()->instruction == 7);
    CHECK_THAT(transfers.failure()->words,
               Catch::Contains("cannot read from 64 bytes at 1048576: end of file"));
}

TEST_CASE("pipelines whose messages have streams of their own train as the reference does") {
    schedule::Plan plan = tiny::plan();
    plan.schedule = GENERATE(as<std::string>{}, "zb-v", "v-min", "dualpipe-v");
    plan.layout.pipeline = 2;
    plan.virtual_stages = 2;
    plan.micro_batches = plan.schedule == "dualpipe-v" ? 8 : 4;
    plan.micro_batch = 1;
    INFO(plan.schedule);
    tiny::check_equal(tiny::compare(plan, tiny::gpt(2), 2, emulated::backend(roomy, true)));
}

TEST_CASE("a step without exchange that loads all kernels leaves no trace in training") {
    schedule::Plan plan = tiny::plan();
    plan.layout.pipeline = plan.layout.data = 2;
    plan.sharding = GENERATE(schedule::Sharding::none, schedule::Sharding::parameters);
    plan.optimizer.gradient_clipping = 0.05;
    tiny::check_equal(tiny::compare(plan, tiny::gpt(2, "dropout = 0.1"), 2, emulated::backend(roomy, true)));
}

TEST_CASE("experts of emulated GPUs train as the reference does, whichever rank has them") {
    schedule::Plan plan = tiny::plan();
    plan.micro_batches = 2;
    const std::string kind = GENERATE(as<std::string>{}, "experts_per_token = 2",
                                      "experts_per_token = 1\nauxiliary_loss = 0.3\ncapacity_factor = 1.0",
                                      "experts_per_token = 2\nauxiliary_loss = 0.5\ncapacity_factor = 0.6");
    INFO(kind);
    SECTION("one rank") {
        tiny::check_equal(tiny::compare(plan, tiny::mixtral(2, kind), 2, emulated::backend(roomy)));
    }
    SECTION("one rank, recomputed, gradients of weights apart") {
        plan.layout.pipeline = 2;
        plan.schedule = "zb-h1";
        tiny::check_equal(tiny::compare(plan, tiny::mixtral(2, kind), 1, emulated::backend(roomy)));
        plan.schedule = "1f1b";
        plan.recompute = schedule::Recompute::full;
        tiny::check_equal(tiny::compare(plan, tiny::mixtral(2, kind), 1, emulated::backend(roomy)));
    }
    SECTION("activations made again, by one launch for all experts or by several") {
        plan.recompute = schedule::Recompute::selective;
        plan.recompute_modules = {schedule::RecomputeModule::moe_act};
        plan.layout.pipeline = 2;
        plan.schedule = GENERATE(as<std::string>{}, "zb-h1", "1f1b");
        exec::cuda::BackendSettings settings = roomy;
        if (GENERATE(false, true)) settings.apart = {exec::Fused::expert_products};
        tiny::check_equal(tiny::compare(plan, tiny::mixtral(2, kind), 2, emulated::backend(settings)));
    }
    SECTION("every expert once") {
        plan.layout.data = plan.layout.expert = GENERATE(2, 4);
        if (GENERATE(false, true)) {
            plan.recompute = schedule::Recompute::selective;
            plan.recompute_modules = {schedule::RecomputeModule::moe_act};
        }
        tiny::check_equal(tiny::compare(plan, tiny::mixtral(2, kind), 1, emulated::backend(roomy)));
    }
    SECTION("experts in two copies, sharded, clipped, after a rehearsal") {
        plan.layout.data = 4;
        plan.layout.expert = 2;
        plan.sharding = schedule::Sharding::parameters;
        plan.optimizer.gradient_clipping = 0.05;
        tiny::check_equal(tiny::compare(plan, tiny::mixtral(2, kind), 1, emulated::backend(roomy, true)));
    }
    SECTION("with tensor and sequence parallelism") {
        plan.layout.data = plan.layout.expert = plan.layout.tensor = 2;
        plan.sequence_parallel = true;
        tiny::check_equal(tiny::compare(plan, tiny::mixtral(2, kind), 1, emulated::backend(roomy)));
    }
    SECTION("whole on tensor ranks, with divided sequences") {
        plan.layout.tensor = 2;
        plan.layout.has_whole_experts = plan.sequence_parallel = true;
        plan.layout.data = plan.layout.context = GENERATE(1, 2);
        plan.layout.expert = GENERATE(1, 2);
        if (plan.layout.expert > plan.layout.data) return;
        tiny::check_equal(tiny::compare(plan, tiny::mixtral(2, kind), 1, emulated::backend(roomy)));
    }
    SECTION("sequences divided over the same ranks") {
        plan.layout.data = plan.layout.context = 2;
        plan.layout.expert = GENERATE(1, 2);
        tiny::check_equal(tiny::compare(plan, tiny::mixtral(2, kind), 1, emulated::backend(roomy)));
    }
    SECTION("offloaded") {
        plan.schedule = "gpipe";
        plan.offload = schedule::Offload::host;
        plan.activation_loading_horizon = 1;
        plan.layout.data = plan.layout.expert = 2;
        tiny::check_equal(tiny::compare(plan, tiny::mixtral(2, kind), 2, emulated::backend(roomy)));
    }
}

TEST_CASE("experts in bf16 on an emulated GPU stay near the CPU's") {
    schedule::Plan plan = tiny::plan();
    plan.micro_batches = 2;
    plan.precision = {core::DataType::bf16, core::DataType::bf16, core::DataType::bf16, true};
    const model::ModelGraph graph = tiny::mixtral(2, "experts_per_token = 2\nauxiliary_loss = 0.1");
    const tiny::Comparison gpu = tiny::compare(plan, graph, 3, emulated::backend(roomy)),
                           cpu = tiny::compare(plan, graph, 3);
    // Logits near 3.4 of values rounded to 2^-9, on both: some units in the last place apart.
    for (std::size_t i = 0; i < gpu.run.losses.size(); ++i)
        CHECK(std::abs(gpu.run.losses[i] - cpu.run.losses[i]) < 4e-3 * cpu.run.losses[i]);
}

TEST_CASE("experts multiply in tf32 where the plan says so") {
    schedule::Plan plan = tiny::plan();
    plan.micro_batches = 2;
    const model::ModelGraph graph = tiny::mixtral(2);
    const auto losses = [&](core::DataType compute) {
        schedule::Program program = tiny::program_of(plan, graph);
        program.plan.precision.compute = compute;  // which no processor has
        exec::RunOptions options;
        options.steps = 3;
        options.make_backend = emulated::backend();
        options.time_limit = core::seconds(20);
        return exec::run(program, graph, tiny::data_of(graph), options).losses;
    };
    const std::vector<double> fp32 = losses(core::DataType::fp32), tf32 = losses(core::DataType::tf32);
    CHECK(fp32 != tf32);
    // Operands are off by 2^-11 of themselves at most.
    for (std::size_t i = 0; i < fp32.size(); ++i) CHECK(std::abs(tf32[i] - fp32[i]) < 0x1p-11 * fp32[i]);
}

TEST_CASE("more routed tokens than a rank has room for end the run with their number") {
    schedule::Plan plan = tiny::plan();
    plan.layout.data = plan.layout.expert = 4;
    CHECK_THROWS_WITH(
        tiny::compare(plan, tiny::mixtral(2, "experts_per_token = 1"), 1,
                      emulated::backend({.expert_room = 1})),
        Catch::Contains("times the routed tokens") && Catch::Contains("has room for 1.00 times"));
}

TEST_CASE("memory is planned for no more routed tokens than capacity lets come") {
    schedule::Plan plan = tiny::plan();
    plan.layout.data = plan.layout.expert = 4;
    const auto bytes = [&](const std::string& more, double room) {
        return emulated::planned(plan, tiny::mixtral(2, "experts_per_token = 1" + more), 0,
                                 {.expert_room = room})
            .arena.bytes;
    };
    CHECK(bytes("\ncapacity_factor = 1", 4) == bytes("\ncapacity_factor = 1", 1));
    CHECK(bytes("\ncapacity_factor = 2", 4) < bytes("", 4));
    CHECK(bytes("", 9) == bytes("", 4));  // all tokens of four ranks
}

TEST_CASE("the Program orders what divided sequences, experts and offload touch") {
    schedule::Plan plan = tiny::plan();
    const auto check = [&](const char* what, const model::ModelGraph& graph) {
        for (int rank = 0; rank < plan.layout.ranks(); ++rank) {
            const exec::cuda::RunPlan run = emulated::planned(plan, graph, rank);
            INFO(what << ", rank " << rank);
            for (const auto& [first, second] : run.arena.unordered)
                UNSCOPED_INFO(first << " before " << second);
            CHECK(run.arena.data_edges == 0);
        }
    };
    plan.layout.data = plan.layout.context = 2;
    check("context", tiny::gpt(2));
    plan.layout.expert = 2;
    check("context and experts", tiny::mixtral(2, "experts_per_token = 2\nauxiliary_loss = 0.1"));
    plan.layout.context = 1;
    check("experts", tiny::mixtral(2, "experts_per_token = 2"));
    plan.layout.data = plan.layout.expert = 1;
    plan.schedule = "gpipe";
    plan.offload = schedule::Offload::host;
    plan.activation_loading_horizon = 1;
    check("offload", tiny::gpt(3));
}
