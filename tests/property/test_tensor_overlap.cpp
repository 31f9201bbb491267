// Products in pieces under every registered schedule: losses are those of whole products to the bit, and
// memory is what was predicted.
#include <catch2/catch.hpp>

#include "core/diagnostics.h"
#include "schedule/pipeline/registry.h"
#include "sim/engine/simulate.h"
#include "tests/exec/tiny.h"

namespace {

struct Ran {
    exec::RunResult measured;
    std::vector<core::Bytes> predicted;
};

Ran run(const schedule::Plan& plan, const model::ModelGraph& graph) {
    const schedule::Program program = tiny::program_of(plan, graph);
    sim::Durations durations;
    for (const schedule::RankProgram& list : program.classes)
        durations.of.emplace_back(list.instructions.size(), core::microseconds(1));
    const sim::Simulation predicted =
        sim::simulate(program, durations, {.has_concurrent_streams = false, .is_folded = false});
    exec::RunOptions options;
    options.steps = 2;
    options.time_limit = core::seconds(20);
    return {exec::run(program, graph, tiny::data_of(graph), options), predicted.memory.peak};
}

}  // namespace

TEST_CASE("every registered schedule runs products in pieces as it runs whole ones") {
    const std::string small =
        "family = 'gpt'\nhidden = 16\nlayers = 6\nheads = 4\nvocabulary = 30\nmax_positions = "
        "8\nsequence_length = 8\n";
    const model::ModelGraph tied = tiny::model_of(small),
                            untied = tiny::model_of(small + "tied_embeddings = false");
    int programs = 0;
    for (const schedule::PipelineSchedule& candidate : schedule::pipeline_schedules())
        for (const bool has_sequence_parallelism : {false, true})
            for (const schedule::Recompute recompute :
                 {schedule::Recompute::none, schedule::Recompute::full}) {
                const model::ModelGraph& graph = candidate.is_asynchronous ? untied : tied;
                schedule::Plan plan = tiny::plan();
                plan.schedule = candidate.name;
                plan.virtual_stages = candidate.least_chunks;
                plan.layout.tensor = plan.layout.pipeline = 2;
                // Pieces of 4 rows at least: fewer, or an odd number, are products of vectors to the library,
                // which adds them otherwise.
                plan.micro_batch = 8;
                plan.sequence_parallel = has_sequence_parallelism;
                plan.recompute = recompute;
                core::Diagnostics diagnostics;
                if (!schedule::make_schedule(plan, diagnostics)) continue;
                INFO(candidate.name << ", sequence parallelism " << has_sequence_parallelism << ", recompute "
                                    << schedule::name_of(recompute));
                const Ran whole = run(plan, graph);
                plan.tensor_overlap = 4;
                const Ran pieces = run(plan, graph);
                CHECK(pieces.measured.losses == whole.measured.losses);
                CHECK(pieces.predicted == whole.predicted);
                // Which message waits when another buffer is largest is up to the clock: of 64 rows of 16
                // numbers, one in each direction; in evaluation all that a rank sends.
                const double messages = (candidate.is_forward_only ? 4.0 * plan.virtual_stages : 2) * 64 *
                                        16 * 4 / (has_sequence_parallelism ? 2 : 1);
                for (std::size_t rank = 0; rank < pieces.predicted.size(); ++rank)
                    CHECK(pieces.measured.memory.peak[rank].value ==
                          Approx(pieces.predicted[rank].value).epsilon(0.10).margin(messages));
                ++programs;
            }
    WARN(programs << " Programs with products in pieces");
    CHECK(programs >= 4 * 12);
}
