// Simulations look at chains of instructions and not at one after the other; the times that come out are
// those that the rule of a Program says: an instruction starts when the one before it on its stream and all
// that it waits for have ended.
#include <algorithm>
#include <catch2/catch.hpp>

#include "cluster/profile/load.h"
#include "core/diagnostics.h"
#include "model/load.h"
#include "schedule/pass/lower.h"
#include "schedule/pipeline/registry.h"
#include "sim/evaluate.h"

namespace {

using schedule::Instruction;
using schedule::InstructionKind;

// Instructions that do not start when they should, of a simulated Program.
std::size_t misplaced(const schedule::Program& program, const schedule::Timeline& timeline) {
    std::size_t count = 0;
    for (std::size_t p = 0; p < timeline.spans.size(); ++p) {
        const schedule::RankProgram& list = program.classes[std::size_t(timeline.class_of[p])];
        std::vector<double> start(list.instructions.size()), end(start.size());
        for (const schedule::Span& span : timeline.spans[p]) {
            start[span.instruction] = span.start.value;
            end[span.instruction] = span.end.value;
        }
        std::vector<double> stream_end(schedule::stream_count, 0);
        for (std::size_t i = 0; i < list.instructions.size(); ++i) {
            const Instruction& instruction = list.instructions[i];
            double& before = stream_end[std::size_t(instruction.stream)];
            double expected = before;
            for (const std::uint32_t awaited : list.after(instruction))
                expected = std::max(expected, end[awaited]);
            count += start[i] != expected || end[i] < start[i] ? 1 : 0;
            before = end[i];
        }
    }
    return count;
}

// Those of the data and tensor streams that end sooner than when nothing else uses their links.
std::size_t hurried(const schedule::Program& program, const schedule::Timeline& shared,
                    const schedule::Timeline& alone) {
    std::size_t count = 0;
    for (std::size_t p = 0; p < shared.spans.size(); ++p) {
        const schedule::RankProgram& list = program.classes[std::size_t(shared.class_of[p])];
        for (std::size_t i = 0; i < list.instructions.size(); ++i) {
            const schedule::Span &with = shared.spans[p][i], &without = alone.spans[p][i];
            REQUIRE(with.instruction == without.instruction);
            count += with.end.value < without.end.value * (1 - 1e-12) ? 1 : 0;
        }
    }
    return count;
}

}  // namespace

TEST_CASE("instructions start when what they wait for has ended, whatever chain they are in") {
    core::Diagnostics diagnostics;
    core::Value model_table, cluster_table;
    model_table["name"] = "gpt2";
    cluster_table["instance"] = "p4d.24xlarge";
    cluster_table["nodes"] = 4;
    const auto graph = model::load_model(model_table, {}, diagnostics);
    const auto cluster = cluster::load_cluster(cluster_table, diagnostics);
    REQUIRE(graph);
    REQUIRE(cluster);
    std::size_t simulated = 0, instructions = 0, slower = 0;
    for (const schedule::PipelineSchedule& order : schedule::pipeline_schedules())
        for (const schedule::Sharding sharding :
             {schedule::Sharding::optimizer, schedule::Sharding::gradients, schedule::Sharding::parameters})
            for (const int tensor : {1, 2, 4}) {
                schedule::Plan plan;
                plan.schedule = order.name;
                plan.layout.pipeline = 4;
                plan.layout.tensor = tensor;
                plan.layout.data = 8 / tensor;
                plan.sharding = sharding;
                plan.sequence_parallel = tensor > 1;
                plan.micro_batches = 8;
                plan.precision = {.compute = core::DataType::bf16,
                                  .parameters = core::DataType::bf16,
                                  .gradients = core::DataType::bf16,
                                  .has_master_parameters = true};
                for (const int chunks : {1, 2}) {
                    plan.virtual_stages = chunks;
                    core::Diagnostics unsupported;
                    if (!schedule::check_schedule(plan, unsupported)) continue;
                    sim::EvaluateOptions options;
                    options.keeps_timeline = true;
                    const auto shared = sim::evaluate(*graph, *cluster, plan, unsupported, options);
                    options.shares_links = false;
                    const auto alone = sim::evaluate(*graph, *cluster, plan, unsupported, options);
                    INFO(order.name << " x" << chunks << ", tensor " << tensor << "\n"
                                    << core::format(unsupported));
                    REQUIRE(shared);
                    REQUIRE(alone);
                    CHECK(misplaced(*shared->program, shared->timeline) == 0);
                    CHECK(misplaced(*alone->program, alone->timeline) == 0);
                    CHECK(hurried(*shared->program, shared->timeline, alone->timeline) == 0);
                    slower += shared->step_time > alone->step_time ? 1 : 0;
                    ++simulated;
                    instructions += shared->simulated_instructions;
                    break;
                }
            }
    // Not in vain: links are shared, and lists are long.
    CHECK(simulated >= 100);
    CHECK(slower >= simulated / 4);
    CHECK(instructions >= 100 * simulated);
}

TEST_CASE("a rank's transfer takes as long as its own way, not as that of its class") {
    core::Diagnostics diagnostics;
    core::Value model_table, cluster_table;
    model_table["name"] = "gpt2";
    cluster_table["instance"] = "p4d.24xlarge";
    cluster_table["nodes"] = 2;
    const auto graph = model::load_model(model_table, {}, diagnostics);
    const auto cluster = cluster::load_cluster(cluster_table, diagnostics);
    REQUIRE(graph);
    REQUIRE(cluster);
    // Ranks 0 to 5 are the first stage. Of the second 6 and 7 are on their node, 8 to 11 on the other.
    schedule::Plan plan;
    plan.schedule = "1f1b";
    plan.layout.pipeline = 2;
    plan.layout.data = 6;
    plan.micro_batches = 8;
    plan.precision = {.compute = core::DataType::bf16,
                      .parameters = core::DataType::bf16,
                      .gradients = core::DataType::bf16,
                      .has_master_parameters = true};
    sim::EvaluateOptions options;
    options.keeps_timeline = true;
    options.is_folded = false;
    const auto evaluation = sim::evaluate(*graph, *cluster, plan, diagnostics, options);
    INFO(core::format(diagnostics));
    REQUIRE(evaluation);
    const schedule::Timeline& timeline = evaluation->timeline;
    std::vector<double> longest(timeline.spans.size(), 0), shortest(timeline.spans.size(), 1);
    for (std::size_t p = 0; p < timeline.spans.size(); ++p)
        for (const schedule::Span& span : timeline.spans[p]) {
            const auto& list = evaluation->program->classes[std::size_t(timeline.class_of[p])];
            if (list.instructions[span.instruction].kind != InstructionKind::send) continue;
            longest[p] = std::max(longest[p], (span.end - span.start).value);
            shortest[p] = std::min(shortest[p], (span.end - span.start).value);
        }
    // NVSwitch carries 300 GB/s of a GPU, its share of the network cards 12.5 GB/s.
    for (const std::size_t near : {0, 1})
        for (const std::size_t far : {2, 3, 4, 5}) CHECK(longest[near] < shortest[far] / 2);
}
