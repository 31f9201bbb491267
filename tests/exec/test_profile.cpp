#include <catch2/catch.hpp>

#include <map>
#include <string>
#include <tuple>

#include "exec/cpu/cores.h"
#include "exec/profile/compare.h"
#include "exec/profile/exchange_profile.h"
#include "exec/profile/profile.h"
#include "exec/runtime/solo_run.h"
#include "model/operators/signature.h"
#include "model/segment.h"
#include "schedule/plan/sequence_cut.h"
#include "tests/exec/tiny.h"

namespace {

std::vector<schedule::Plan> plans() {
    std::vector<schedule::Plan> result;
    for (const char* name : {"gpipe", "1f1b", "zb-h1"}) {
        schedule::Plan plan = tiny::plan();
        plan.schedule = name;
        plan.layout.pipeline = 2;
        plan.micro_batches = 4;
        plan.micro_batch = 1;
        result.push_back(plan);
    }
    result.push_back(result[1]);
    result.back().recompute = schedule::Recompute::full;
    for (const schedule::Sharding sharding :
         {schedule::Sharding::none, schedule::Sharding::optimizer, schedule::Sharding::parameters}) {
        schedule::Plan plan = tiny::plan();
        plan.layout.data = 4;
        plan.sharding = sharding;
        result.push_back(plan);
    }
    result.push_back(tiny::plan());
    result.back().layout.tensor = 2;
    result.push_back(tiny::plan());
    result.back().schedule = "seq1f1b";
    result.back().layout.pipeline = 2;
    result.back().schedule_parameters = schedule::SegmentParameters{2};
    return result;
}

}  // namespace

TEST_CASE(
    "a rank without its peers holds at its peak what it holds in the run, but for messages on their way") {
    const model::ModelGraph graph = tiny::gpt();
    for (const schedule::Plan& plan : plans()) {
        const schedule::Program program = tiny::program_of(plan, graph);
        exec::RunOptions options;
        options.steps = 2;
        const exec::RunResult together = exec::run(program, graph, tiny::data_of(graph), options);
        for (int rank = 0; rank < plan.layout.ranks(); ++rank) {
            INFO(plan.schedule << ", pipeline " << plan.layout.pipeline << " data " << plan.layout.data
                               << " tensor " << plan.layout.tensor << ", rank " << rank);
            const std::vector<exec::RankRecord> alone =
                exec::run_alone(program, graph, tiny::data_of(graph), options, {rank});
            REQUIRE(alone.size() == 1);
            REQUIRE(alone[0].steps.size() == 2);
            const auto rank_class =
                static_cast<std::size_t>(program.class_of_rank[static_cast<std::size_t>(rank)]);
            REQUIRE(alone[0].steps[1].size() == program.classes[rank_class].instructions.size());
            // A message on its way to a peer that computes is still held.
            const double held = together.memory.peak[static_cast<std::size_t>(rank)].value;
            REQUIRE(alone[0].peak.value <= held);
            REQUIRE(alone[0].peak.value >= held * 0.9);
        }
    }
}

TEST_CASE("a profile has a time for every operator that computes, whichever rank has it") {
    const model::ModelGraph graph = tiny::gpt();
    for (const schedule::Plan& plan : plans()) {
        const exec::PlanProfile profile =
            exec::profile_plan(tiny::program_of(plan, graph), graph, tiny::data_of(graph));
        std::map<std::string, const cluster::MeasuredOperator*> entries;
        for (const cluster::MeasuredOperator& entry : profile.operators) entries[entry.signature] = &entry;
        // Where sequences are cut, an operator of the first half is another than one of the second: its
        // attention sees fewer keys.
        for (const model::ModelGraph& segment :
             model::SegmentGraphs(graph, schedule::passes_per_micro_batch(plan)))
            for (std::size_t op = 0; op < graph.operators.size(); ++op) {
                const bool is_attention = graph.operators[op].kind == model::OperatorKind::attention;
                if (graph.operators[op].parameters.empty() && !is_attention) continue;
                INFO(plan.schedule << ", pipeline " << plan.layout.pipeline << " data " << plan.layout.data
                                   << " tensor " << plan.layout.tensor << ", " << graph.operators[op].name);
                const auto found = entries.find(model::signature(
                    segment, model::OperatorId(static_cast<std::int32_t>(op)), plan.cost_context()));
                REQUIRE(found != entries.end());
                REQUIRE(found->second->forward.value > 0);
                if (is_attention) REQUIRE(found->second->backward_input.value > 0);
                else REQUIRE(found->second->backward_weight.value > 0);
            }
        REQUIRE(profile.update_bandwidth.value > 0);
        REQUIRE(profile.link_bandwidth.value > 0);
        REQUIRE(profile.product_rate.value > 0);
    }
}

TEST_CASE("every collective of a plan is timed by itself, and more bytes take longer") {
    if (exec::cpu::available_cores() < 2) return;
    schedule::Plan plan = tiny::plan();
    plan.layout.data = plan.layout.context = 2;
    plan.gradient_bucket = core::bytes(1e9);
    const model::ModelGraph graph = tiny::model_of(
        "family = 'gpt'\nhidden = 256\nlayers = 3\nheads = 4\nvocabulary = 256\n"
        "max_positions = 16\nsequence_length = 16\n");
    const schedule::Program program = tiny::program_of(plan, graph);
    std::map<std::string, double> expected;  // bytes by signature
    for (const schedule::Instruction& instruction : program.classes[0].instructions)
        if (instruction.kind == schedule::InstructionKind::collective)
            expected[exec::exchange_signature(program, 0, instruction)] = instruction.bytes.value;
    REQUIRE(expected.size() >= 4);  // keys, their gradients, gradients of parameters, the loss
    std::map<std::string, double> measured;
    for (const exec::MeasuredExchange& one : exec::time_exchanges_of_threads(program))
        measured[one.signature] = one.time.value;
    double least = 1e9, least_time = 0, most = 0, most_time = 0;
    for (const auto& [signature, bytes] : expected) {
        INFO(signature);
        REQUIRE(measured.contains(signature));
        CHECK(measured[signature] > 0);
        if (bytes < least) std::tie(least, least_time) = std::pair(bytes, measured[signature]);
        if (bytes > most) std::tie(most, most_time) = std::pair(bytes, measured[signature]);
    }
    CHECK(measured.size() == expected.size());
    // 9.5 MB of gradients against a number: copying them alone takes a millisecond.
    CHECK(most > 1e6 * least);
    CHECK(most_time > 3 * least_time);
}

TEST_CASE("a difference of prediction and measurement is an error where their repetitions do not meet") {
    exec::Comparison comparison;
    comparison.predicted_step = core::milliseconds(10);
    comparison.measured_step = core::milliseconds(12);
    CHECK(exec::exceeds_noise(comparison));  // nothing is known of repetitions
    const auto with = [&](double low, double high) {
        comparison.predicted_interval = {core::milliseconds(9.5), core::milliseconds(10.5)};
        comparison.measured_interval = {core::milliseconds(low), core::milliseconds(high)};
        return exec::exceeds_noise(comparison);
    };
    CHECK(with(11.8, 12.5));
    CHECK_FALSE(with(10.4, 12.5));
    CHECK_FALSE(with(9.0, 14.0));
    CHECK(with(8.0, 9.4));
}
