#include <catch2/catch.hpp>

#include "core/diagnostics.h"
#include "core/document.h"
#include "planner/order/plan_order.h"
#include "schedule/pass/lower.h"
#include "schedule/pipeline/registry.h"
#include "schedule/plan/explicit_order.h"
#include "schedule/plan/partition.h"
#include "schedule/verify.h"
#include "sim/evaluate.h"
#include "tests/cluster/instances.h"
#include "tests/model/catalogue.h"

namespace {

schedule::Plan plan_of(int stages, int chunks, int micro_batches) {
    schedule::Plan plan;
    plan.layout.pipeline = stages;
    plan.layout.data = 8 / stages;
    plan.virtual_stages = chunks;
    plan.micro_batches = micro_batches;
    plan.schedule = "auto";
    return plan;
}

}  // namespace

TEST_CASE("A plan's searched order is an order of the plan that no registered schedule beats") {
    const model::ModelGraph graph = load_graph("gpt2");
    const cluster::Cluster cluster = nodes_of("p4d.24xlarge", 1);
    for (const int stages : {2, 4})
        for (const int chunks : {1, 2}) {
            INFO(stages << " ranks, " << chunks << " virtual stages each");
            core::Diagnostics diagnostics;
            const schedule::Plan plan = plan_of(stages, chunks, 8);
            const auto ordered =
                planner::with_searched_order(graph, cluster, plan, diagnostics, {core::Seconds(0.1), 1});
            INFO(core::format(diagnostics));
            REQUIRE(ordered);
            CHECK(ordered->explanation.find("schedule = \"auto\"") == 0);
            const auto order = schedule::make_schedule(ordered->plan, diagnostics);
            REQUIRE(order);
            CHECK(verify(*order).empty());
            const auto evaluation = sim::evaluate(graph, cluster, ordered->plan, diagnostics);
            REQUIRE(evaluation);
            CHECK(evaluation->fits);
            for (const schedule::PipelineSchedule& registered : schedule::pipeline_schedules()) {
                if (registered.is_forward_only || registered.is_asynchronous || registered.is_bidirectional ||
                    registered.cuts_sequences())
                    continue;
                schedule::Plan named = plan;
                named.schedule = registered.name;
                core::Diagnostics refusals;
                if (!schedule::check_schedule(named, refusals)) continue;
                INFO(registered.name);
                CHECK(evaluation->step_time.value <=
                      sim::evaluate(graph, cluster, named, refusals)->step_time.value * (1 + 1e-9));
            }
        }
}

TEST_CASE(
    "The stage times of a plan add up to what its plain schedule takes on one micro-batch after the other") {
    const model::ModelGraph graph = load_graph("gpt2");
    const cluster::Cluster cluster = nodes_of("p4d.24xlarge", 1);
    core::Diagnostics diagnostics;
    const auto problem = planner::order_problem(graph, cluster, plan_of(4, 1, 8), diagnostics);
    REQUIRE(problem);
    CHECK(problem->ranks == 4);
    CHECK(problem->transfer.value > 0);
    for (const sim::StageCost& stage : problem->stages) {
        CHECK(stage.forward.value > 0);
        CHECK(stage.backward_input.value > 0);
        CHECK(stage.backward_weight.value > 0);
        CHECK(stage.memory_forward.value > 0);
        // What a forward takes, its backward gives back.
        CHECK((stage.memory_forward + stage.memory_backward_input + stage.memory_backward_weight).value ==
              Approx(0).margin(1));
    }
}

TEST_CASE("An order in a plan has the plan's shape and keeps the rules") {
    schedule::Plan plan = plan_of(2, 1, 2);
    core::Diagnostics diagnostics;
    CHECK_FALSE(schedule::make_schedule(plan, diagnostics));  // "auto" is for whoever loads the plan
    plan.schedule = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n";
    const auto order = schedule::make_schedule(plan, diagnostics);
    REQUIRE(order);
    CHECK(order->actions[1][1].kind == schedule::ActionKind::backward);
    CHECK_FALSE(schedule::make_schedule(plan, diagnostics, 4));  // it is an order of two micro-batches
    auto is_refused_for = [&](const char* text, const char* word) {
        plan.schedule = text;
        core::Diagnostics refusal;
        CHECK_FALSE(schedule::check_schedule(plan, refusal));
        REQUIRE(refusal.entries().size() == 1);
        INFO(refusal.entries()[0].message);
        CHECK(refusal.entries()[0].message.find(word) != std::string::npos);
    };
    is_refused_for("0F0,0B0\n1F0,1B0\n", "1 micro-batches");
    is_refused_for("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", "progress");
    is_refused_for("0F0,0F1\n1F0,1F1\n", "without backward");
    is_refused_for("0F0,oops\n1F0\n", "oops");
    CHECK(schedule::schedule_label(plan.schedule) == "explicit order");
    CHECK(schedule::schedule_label("zb-h1") == "zb-h1");
}
