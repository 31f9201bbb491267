// Products in pieces beside their exchange on emulated GPUs: training equals the reference, what runs beside
// what is left to the streams, and launches are counted.
#include <catch2/catch.hpp>

#include <algorithm>
#include <mutex>

#include "tests/exec_cuda/emulated_run.h"

namespace {

// Counts products of some rows, and the arrays that are cleared on the stream of the exchanges.
struct Counting : emulated::Emulated {
    void product(exec::cuda::Stream stream, const exec::cuda::Product& p) override {
        pieces += p.whole_rows > 0;
        runs_of_rows += p.whole_rows > 0 ? p.batch : 0;
        rows += p.whole_rows > 0 ? p.m * p.batch : 0;
        takes_bias += p.whole_rows > 0 && p.bias;
        adds += p.whole_rows > 0 && (p.accumulates || p.addend);
        Emulated::product(stream, p);
    }
    int pieces = 0, takes_bias = 0, adds = 0;
    std::int64_t rows = 0, runs_of_rows = 0;
};

exec::BackendMaker counted(std::vector<std::shared_ptr<Counting>>& machines) {
    static std::mutex mutex;
    return [&machines](const exec::BackendRequest& request) {
        auto machine = std::make_shared<Counting>();
        {
            const std::lock_guard lock(mutex);
            machines.push_back(machine);
        }
        return exec::cuda::make_backend(request, machine,
                                        std::make_shared<emulated::Messages>(request.communicator), {});
    };
}

schedule::Plan plan_in(int pieces) {
    schedule::Plan plan = tiny::plan();
    plan.micro_batches = 2;
    plan.layout.tensor = 2;
    plan.tensor_overlap = pieces;
    return plan;
}

}  // namespace

TEST_CASE("products in pieces train on emulated GPUs as the reference does") {
    schedule::Plan plan = plan_in(GENERATE(2, 3));
    plan.sequence_parallel = GENERATE(false, true);
    SECTION("alone, recomputed") {
        plan.recompute = GENERATE(schedule::Recompute::none, schedule::Recompute::full);
        tiny::check_equal(tiny::compare(plan, tiny::gpt(2, "dropout = 0.2"), 2, emulated::backend()));
        tiny::check_equal(tiny::compare(plan, tiny::llama(2), 1, emulated::backend()));
    }
    SECTION("with an approximate GELU before the product") {
        tiny::check_equal(
            tiny::compare(plan, tiny::gpt(2, "activation = 'gelu_tanh'\n"), 2, emulated::backend()));
    }
    SECTION("sharded") {
        plan.layout.data = 2;
        plan.sharding = GENERATE(schedule::Sharding::gradients, schedule::Sharding::parameters);
        tiny::check_equal(tiny::compare(plan, tiny::gpt(2), 2, emulated::backend()));
    }
    SECTION("in pipelines") {
        plan.layout.pipeline = 2;
        plan.micro_batches = 4;
        plan.schedule = GENERATE("1f1b", "zb-h1", "seq1f1b");
        tiny::check_equal(tiny::compare(plan, tiny::gpt(3), 1, emulated::backend()));
    }
}

TEST_CASE("products in pieces give the losses of whole ones to the bit in bf16 too") {
    const model::ModelGraph graph = tiny::gpt(2);
    exec::RunOptions options;
    options.steps = 3;
    options.make_backend = emulated::backend();
    std::vector<std::vector<double>> losses;
    const bool has_sequence_parallelism = GENERATE(false, true);
    for (const int pieces : {1, 4}) {
        schedule::Plan plan = plan_in(pieces);
        plan.sequence_parallel = has_sequence_parallelism;
        plan.precision = schedule::precision_named(core::DataType::bf16);
        losses.push_back(
            exec::run(tiny::program_of(plan, graph), graph, tiny::data_of(graph), options).losses);
    }
    REQUIRE(losses[0].size() == 3);
    CHECK(losses[0] == losses[1]);
}

TEST_CASE("a piece is one launch, with the bias of one rank, and writes instead of adding") {
    constexpr int pieces = 4, layers = 2, steps = 2, micro_batches = 2;
    schedule::Plan plan = plan_in(pieces);
    plan.sequence_parallel = GENERATE(false, true);
    std::vector<std::shared_ptr<Counting>> machines;
    tiny::check_equal(tiny::compare(plan, tiny::gpt(layers), steps, counted(machines)));
    REQUIRE(machines.size() == 2);
    // A layer and micro-batch: two products there, two gradients back.
    constexpr int each = layers * micro_batches * steps;
    constexpr int rows = 16;  // of a micro-batch of two samples
    int biases = 0;
    for (const auto& machine : machines) {
        CHECK(machine->pieces == each * 4 * pieces);
        CHECK(machine->runs_of_rows == machine->pieces * (plan.sequence_parallel ? plan.layout.tensor : 1));
        CHECK(machine->rows == each * 4 * rows);
        CHECK(machine->adds == 0);
        biases += machine->takes_bias;
    }
    CHECK(biases == each * 2 * pieces);
}

// What would put a piece behind the exchange of the one before it.
TEST_CASE("planning adds no edge between a piece's exchange and the product of the next") {
    const model::ModelGraph graph = tiny::gpt(3, "dropout = 0.1");
    schedule::Plan plan = plan_in(4);
    plan.sequence_parallel = GENERATE(false, true);
    plan.layout.pipeline = GENERATE(1, 2);
    plan.schedule = "1f1b";
    const schedule::Program program = tiny::program_of(plan, graph);
    int pieces = 0;
    for (int rank = 0; rank < plan.layout.ranks(); ++rank) {
        const exec::cuda::RunPlan run = emulated::planned(plan, graph, rank);
        CHECK(run.arena.data_edges == 0);
        const auto& list =
            program.classes[std::size_t(program.class_of_rank[std::size_t(rank)])].instructions;
        for (std::size_t n = 0; n < list.size(); ++n) {
            const bool is_later_product =
                list[n].kind == schedule::InstructionKind::compute && list[n].pieces > 1 && list[n].piece > 0;
            if (!is_later_product) continue;
            ++pieces;
            for (const std::uint32_t other : run.arena.waits[n])
                CHECK(list[other].stream != schedule::Stream::tensor);
        }
    }
    CHECK(pieces > 0);
}
