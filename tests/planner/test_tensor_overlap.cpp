// Products in pieces as an axis of the search: fixed unless values are asked for, bounded from below, and
// searched without leaving anything out.
#include <catch2/catch.hpp>

#include <set>

#include "core/diagnostics.h"
#include "planner/bound/bounds.h"
#include "planner/explain.h"
#include "planner/search.h"
#include "sim/evaluate.h"
#include "tests/planner/questions.h"

TEST_CASE("a search has products in pieces only where their numbers are asked for") {
    const auto graph = load_graph("gpt2", 128);
    const auto candidate = target_of("p3.16xlarge", 1);
    planner::SpaceRequest request{.global_batch = 16, .base = candidate.base};
    const std::vector<schedule::Plan> whole = planner::legal_plans(graph, candidate.cluster, request);
    std::size_t of_several_ranks = 0;
    for (const schedule::Plan& plan : whole) {
        CHECK(plan.tensor_overlap == 1);
        of_several_ranks += plan.layout.tensor > 1;
    }
    request.limits.tensor_overlap = {1, 2, 4};
    const std::vector<schedule::Plan> wider = planner::legal_plans(graph, candidate.cluster, request);
    CHECK(wider.size() == whole.size() + 2 * of_several_ranks);
    for (const schedule::Plan& plan : wider) CHECK((plan.layout.tensor > 1 || plan.tensor_overlap == 1));
    // In fp8 products run whole.
    request.base.precision.compute = core::DataType::fp8;
    CHECK(planner::legal_plans(graph, candidate.cluster, request).size() == whole.size());
}

TEST_CASE("no plan with products in pieces needs less memory or less time than its bounds say") {
    for (const auto& [name, tokens, instance, nodes, batch] :
         {std::tuple{"gpt2", 512, "p3.16xlarge", 1, 16}, std::tuple{"gpt2", 1024, "p4d.24xlarge", 2, 32},
          std::tuple{"bert-base", 128, "g4dn.12xlarge", 1, 16}}) {
        const auto graph = load_graph(name, tokens);
        const auto candidate = target_of(instance, nodes);
        planner::OrderCollection orders;
        planner::StageCollection stages(graph, candidate.cluster.instance.device);
        planner::Bounds bounds(candidate.cluster, orders, stages);
        planner::SpaceRequest request{
            .global_batch = batch, .base = candidate.base, .most_virtual_stages = 1};
        request.limits.tensor_overlap = {1, 2, 8};
        const auto plans = planner::legal_plans(graph, candidate.cluster, request);
        // As a search does, of every plan first: what plans share is computed for one of them.
        for (const schedule::Plan& plan : plans) bounds.time(plan);
        int seen = 0, simulated = 0;
        for (schedule::Plan plan : plans) {
            const schedule::Partition* const partition =
                plan.tensor_overlap > 1 ? stages.partition(plan) : nullptr;
            if (!partition || seen++ % 23 != 0) continue;
            const auto memory = bounds.memory(plan);
            REQUIRE(memory);
            const core::Seconds time = bounds.time_of_order(plan), work = bounds.time_of_work(plan);
            plan.partition = *partition;
            core::Diagnostics diagnostics;
            const auto evaluation = sim::evaluate(graph, candidate.cluster, plan, diagnostics);
            REQUIRE(evaluation);
            INFO(name << " on " << instance << ": " << planner::describe(plan) << ", sequence parallel "
                      << plan.sequence_parallel);
            CHECK(memory->peak.value <= evaluation->peak_memory.value * (1 + 1e-9));
            CHECK(time.value <= evaluation->step_time.value * (1 + 1e-9));
            CHECK(work.value <= evaluation->step_time.value * (1 + 1e-9));
            ++simulated;
        }
        CHECK(simulated > 10);
    }
}

TEST_CASE("a search over numbers of pieces finds what simulating everything finds, and no worse than one") {
    const auto graph = load_graph("gpt2", 512);
    const std::vector<planner::Target> targets = {target_of("g4dn.12xlarge", 1)};
    planner::SearchRequest request;
    request.global_batch = 4;
    request.keep = 1;
    request.most_virtual_stages = 1;
    request.limits.tensor = {4};
    core::Diagnostics diagnostics;
    const auto one = planner::search_plans(graph, targets, request, diagnostics);
    request.limits.tensor_overlap = {1, 2, 4};
    const auto pruned = planner::search_plans(graph, targets, request, diagnostics);
    request.uses_bounds = false;
    const auto whole = planner::search_plans(graph, targets, request, diagnostics);
    REQUIRE(one.plans.size() == 1);
    REQUIRE(pruned.plans.size() == 1);
    REQUIRE(whole.plans.size() == 1);
    CHECK(pruned.plans[0].value == Approx(whole.plans[0].value).epsilon(1e-12));
    CHECK(pruned.plans[0].value <= one.plans[0].value * (1 + 1e-12));
    CHECK(pruned.account.is_proven_optimal);
    CHECK(pruned.account.space == whole.account.space);
    CHECK(pruned.account.space == 3 * one.account.space);
}
