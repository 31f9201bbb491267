// Heads exchanged instead of keys gathered as an axis of the search: there wherever heads divide, bounded
// from below, and taken where it moves less.
#include <catch2/catch.hpp>

#include <algorithm>
#include <set>

#include "core/diagnostics.h"
#include "planner/bounds.h"
#include "planner/explain.h"
#include "planner/search.h"
#include "schedule/plan/plan_file.h"
#include "sim/evaluate.h"
#include "tests/planner/questions.h"

using schedule::ContextCommunication;

namespace {

// Of eight heads on samples of 8,192 tokens, so that degrees of context parallelism are searched.
planner::SpaceRequest long_samples(const planner::Target& target, int batch) {
    return {.global_batch = batch, .base = target.base, .most_virtual_stages = 1};
}

}  // namespace

TEST_CASE("plans that divide sequences come with keys gathered, and with heads exchanged where they divide") {
    const model::ModelGraph graph = small_llama();  // eight heads
    const planner::Target target = target_of("p4d.24xlarge", 1);
    const std::vector<schedule::Plan> plans =
        planner::legal_plans(graph, target.cluster, long_samples(target, 4));
    std::size_t gathered = 0, exchanged = 0;
    for (const schedule::Plan& plan : plans) {
        core::Diagnostics diagnostics;
        schedule::check_plan(plan, graph, 8, nullptr, diagnostics);
        INFO(planner::describe(plan));
        CHECK_FALSE(diagnostics.has_errors());
        const bool divides = 8 / plan.layout.tensor % plan.layout.context == 0;
        if (plan.context_communication == ContextCommunication::all_to_all) {
            CHECK(plan.layout.context > 1);
            CHECK(divides);
            CHECK(plan.recompute != schedule::Recompute::selective);
            ++exchanged;
        } else if (plan.layout.context > 1 && divides) {
            ++gathered;
        }
    }
    CHECK(exchanged > 0);
    CHECK(exchanged == gathered);  // fused attention: nothing to recompute by itself
    planner::SpaceRequest one = long_samples(target, 4);
    one.limits.context_communication = {ContextCommunication::all_gather};
    CHECK(planner::legal_plans(graph, target.cluster, one).size() == plans.size() - exchanged);
}

TEST_CASE("heads are exchanged unasked where that moves at most twice what gathered keys do") {
    // Of 64 heads eight have keys: two ranks would exchange (2 x 64 + 2 x 8) / 2 heads of their tokens twice,
    // and gather 2 x 8 of all tokens three times: 144 against 48. With eight ranks it is 36.
    const model::ModelGraph graph = load_graph("llama-2-70b", 16384);
    const planner::Target target = target_of("p4d.24xlarge", 1);
    planner::SpaceRequest request = long_samples(target, 4);
    std::set<int> degrees;
    for (const schedule::Plan& plan : planner::legal_plans(graph, target.cluster, request))
        if (plan.context_communication == ContextCommunication::all_to_all)
            degrees.insert(plan.layout.context);
    CHECK(degrees == std::set<int>{4, 8});
    request.limits.context_communication = {ContextCommunication::all_to_all};
    degrees.clear();
    for (const schedule::Plan& plan : planner::legal_plans(graph, target.cluster, request))
        if (plan.layout.context > 1) degrees.insert(plan.layout.context);
    CHECK(degrees == std::set<int>{2, 4, 8});
}

TEST_CASE("no plan that exchanges heads needs less memory or less time than its bounds say") {
    for (const auto& [instance, nodes, batch] :
         {std::tuple{"p4d.24xlarge", 1, 4}, std::tuple{"p4d.24xlarge", 2, 8},
          std::tuple{"p3.16xlarge", 2, 4}}) {
        const model::ModelGraph graph = small_llama();
        const planner::Target target = target_of(instance, nodes);
        planner::OrderCollection orders;
        planner::StageCollection stages(graph, target.cluster.instance.device);
        planner::Bounds bounds(target.cluster, orders, stages);
        const auto plans = planner::legal_plans(graph, target.cluster, long_samples(target, batch));
        for (const schedule::Plan& plan : plans) bounds.time(plan);
        int seen = 0, simulated = 0;
        for (schedule::Plan plan : plans) {
            if (plan.context_communication != ContextCommunication::all_to_all || seen++ % 11 != 0) continue;
            const auto memory = bounds.memory(plan);
            REQUIRE(memory);
            const core::Seconds time = bounds.time_of_order(plan), work = bounds.time_of_work(plan);
            const schedule::Partition* const partition = stages.partition(plan);
            REQUIRE(partition);
            plan.partition = *partition;
            core::Diagnostics diagnostics;
            const auto evaluation = sim::evaluate(graph, target.cluster, plan, diagnostics);
            REQUIRE(evaluation);
            INFO(planner::describe(plan));
            CHECK(work <= evaluation->step_time * (1 + 1e-9));
            CHECK(time <= evaluation->step_time * (1 + 1e-9));
            CHECK(memory->peak <= evaluation->peak_memory * (1 + 1e-9));
            ++simulated;
        }
        CHECK(simulated >= 10);
    }
}

TEST_CASE("a search finds the same plan among exchanged heads as a look at every plan does") {
    const model::ModelGraph graph = small_llama();
    const std::vector<planner::Target> targets = {target_of("p3.16xlarge", 1)};
    planner::SearchRequest request;
    request.global_batch = 2;
    request.limits.schedules = {"1f1b"};
    request.limits.pipeline = {1};
    request.refines_first = false;
    core::Diagnostics diagnostics;
    const planner::SearchResult found = planner::search_plans(graph, targets, request, diagnostics);
    request.uses_bounds = false;
    const planner::SearchResult every = planner::search_plans(graph, targets, request, diagnostics);
    REQUIRE_FALSE(found.plans.empty());
    REQUIRE_FALSE(every.plans.empty());
    CHECK(found.plans.front().value == every.plans.front().value);
    CHECK(planner::describe(found.plans.front().plan) == planner::describe(every.plans.front().plan));
    CHECK(found.account.is_proven_optimal);
}

TEST_CASE("with as many heads of keys as of queries exchanged heads move less than gathered keys") {
    // Of a layer a rank gets 2 h of (c - 1) / c of the tokens as keys and values, or 4 h of (c - 1) / c of
    // its own c-th of them as heads: with eight ranks a quarter.
    const model::ModelGraph graph = load_graph("llama-2-7b", 32768);
    const planner::Target target = target_of("p4d.24xlarge", 1);
    schedule::Plan plan = target.base;
    plan.layout.data = plan.layout.context = 8;
    plan.micro_batches = 2;
    plan.sharding = schedule::Sharding::parameters;
    plan.recompute = schedule::Recompute::full;
    core::Diagnostics diagnostics;
    const auto gathered = sim::evaluate(graph, target.cluster, plan, diagnostics);
    plan.context_communication = ContextCommunication::all_to_all;
    const auto exchanged = sim::evaluate(graph, target.cluster, plan, diagnostics);
    REQUIRE(gathered);
    REQUIRE(exchanged);
    CHECK(exchanged->step_time < gathered->step_time);
    CHECK(exchanged->breakdown.tensor_parallel < gathered->breakdown.tensor_parallel * 0.7);
    // As much is computed.
    CHECK(exchanged->breakdown.compute.value == Approx(gathered->breakdown.compute.value).epsilon(0.03));
}
