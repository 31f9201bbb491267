// Products of tensor-parallel layers in pieces beside their exchange: training equals the reference, and
// where sums are added in the same order the losses are those of whole products to the bit.
#include <catch2/catch.hpp>

#include "schedule/pipeline/registry.h"
#include "tests/exec/tiny.h"

namespace {

std::vector<double> losses_of(const schedule::Plan& plan, const model::ModelGraph& graph) {
    exec::RunOptions options;
    options.steps = 3;
    options.time_limit = core::seconds(20);
    return exec::run(tiny::program_of(plan, graph), graph, tiny::data_of(graph), options).losses;
}

int pieces_in(const schedule::Program& program) {
    int pieces = 0;
    for (const schedule::RankProgram& list : program.classes)
        for (const schedule::Instruction& i : list.instructions)
            pieces += i.kind == schedule::InstructionKind::compute && i.pieces > 1;
    return pieces;
}

}  // namespace

TEST_CASE("products in pieces train as the reference does") {
    schedule::Plan plan = tiny::plan();
    plan.layout.tensor = 2;
    plan.sequence_parallel = GENERATE(false, true);
    plan.tensor_overlap = GENERATE(2, 3);
    model::ModelGraph graph = tiny::gpt(3, "dropout = 0.1");
    SECTION("in one stage") {}
    SECTION("on four ranks, in as many pieces as there are rows at most") {
        plan.layout.tensor = 4;
        plan.tensor_overlap = 64;
    }
    SECTION("of gated layers without biases") { graph = tiny::llama(3); }
    SECTION("of mixtures, beside experts whose exchange stays whole") { graph = tiny::mixtral(3); }
    SECTION("recomputed") {
        plan.recompute = GENERATE(schedule::Recompute::selective, schedule::Recompute::full);
        plan.attention = model::AttentionImplementation::unfused;
    }
    SECTION("with sharded gradients and parameters") {
        plan.layout.data = 2;
        plan.sharding =
            GENERATE(schedule::Sharding::none, schedule::Sharding::gradients, schedule::Sharding::parameters);
    }
    SECTION("in a pipeline, forward and backward in one, split, both ways and segment by segment") {
        plan.layout.pipeline = 2;
        plan.schedule = GENERATE("1f1b", "zb-h1", "chimera", "seq1f1b", "gpipe");
        if (plan.schedule == "seq1f1b") plan.schedule_parameters = schedule::SegmentParameters{2};
    }
    SECTION("with parts of sequences") { plan.layout.data = plan.layout.context = 2; }
    SECTION("in bf16") {
        plan.precision = schedule::precision_named(core::DataType::bf16);
        const schedule::Program program = tiny::program_of(plan, graph);
        CHECK(pieces_in(program) > 0);
        plan.tensor_overlap = 1;
        const std::vector<double> whole = losses_of(plan, graph);
        plan.tensor_overlap = 2;
        const std::vector<double> pieces = losses_of(plan, graph);
        REQUIRE(whole.size() == pieces.size());
        for (std::size_t i = 0; i < whole.size(); ++i) CHECK(pieces[i] == whole[i]);
        return;
    }
    INFO(core::to_toml(schedule::to_value(plan)));
    CHECK(pieces_in(tiny::program_of(plan, graph)) > 0);
    tiny::check_equal(tiny::compare(plan, graph));
}

// Two numbers have one sum. In a ring each of more ranks' shares of a message begins at another rank: those
// of a reduce-scatter stay where they are in pieces, those of an all-reduce do not.
TEST_CASE("products in pieces give the losses of whole ones to the bit where sums have one order") {
    schedule::Plan plan = tiny::plan();
    // Pieces of 4 rows at least: fewer, or an odd number, are products of vectors to the library, which adds
    // them otherwise.
    plan.micro_batch = 8;
    const int pieces_asked_for = GENERATE(2, 4);
    const model::ModelGraph graph = tiny::gpt(3);
    SECTION("all-reduce of two ranks") { plan.layout.tensor = 2; }
    SECTION("reduce-scatter of two ranks") {
        plan.layout.tensor = 2;
        plan.sequence_parallel = true;
    }
    SECTION("reduce-scatter of four ranks") {
        plan.layout.tensor = 4;
        plan.sequence_parallel = true;
        plan.collective = "ring";
    }
    const std::vector<double> whole = losses_of(plan, graph);
    plan.tensor_overlap = pieces_asked_for;
    const std::vector<double> pieces = losses_of(plan, graph);
    REQUIRE(whole.size() == 3);
    REQUIRE(pieces.size() == 3);
    for (std::size_t i = 0; i < whole.size(); ++i) CHECK(pieces[i] == whole[i]);
}

TEST_CASE("products in pieces allocate no more than whole ones, rank by rank and to the byte") {
    schedule::Plan plan = tiny::plan();
    plan.layout.tensor = 2;
    plan.layout.pipeline = 2;
    plan.sequence_parallel = GENERATE(false, true);
    plan.recompute = GENERATE(schedule::Recompute::none, schedule::Recompute::full);
    const model::ModelGraph graph = tiny::gpt(4);
    std::vector<std::vector<core::Bytes>> peaks;
    for (const int pieces : {1, 4}) {
        plan.tensor_overlap = pieces;
        const exec::RunResult run = exec::run(tiny::program_of(plan, graph), graph, tiny::data_of(graph), {});
        peaks.push_back(run.memory.peak);
    }
    REQUIRE(peaks[0].size() == 4);
    // Which message waits when another buffer is largest is up to the clock: one boundary tensor of 16 rows x
    // 16 values (of a rank's share with sequence parallelism: half) each way.
    const double messages = 2 * 16 * 16 * 4 / (plan.sequence_parallel ? 2.0 : 1.0);
    for (std::size_t rank = 0; rank < peaks[0].size(); ++rank)
        CHECK(peaks[1][rank].value == Approx(peaks[0][rank].value).epsilon(0).margin(messages));
}
