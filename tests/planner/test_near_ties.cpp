// Plans nearly as good as the best that differ in what else matters.
#include <algorithm>
#include <catch2/catch.hpp>

#include "core/diagnostics.h"
#include "planner/near_ties.h"
#include "tests/planner/questions.h"

namespace {

planner::RankedPlan plan_of(double value, double memory_share, int tensor = 1, int pipeline = 1) {
    planner::RankedPlan plan;
    plan.value = value;
    plan.evaluation.peak_memory = core::gibibytes(100 * memory_share);
    plan.evaluation.available_memory = core::gibibytes(100);
    plan.plan.layout.tensor = tensor;
    plan.plan.layout.pipeline = pipeline;
    return plan;
}

const planner::NearTie* with_merit(const std::vector<planner::NearTie>& ties, const std::string& merit) {
    for (const planner::NearTie& tie : ties)
        if (std::find(tie.merits.begin(), tie.merits.end(), merit) != tie.merits.end()) return &tie;
    return nullptr;
}

}  // namespace

TEST_CASE("everything beside data parallelism is one more thing to set up") {
    schedule::Plan plan;
    CHECK(planner::moving_parts(plan) == 0);
    plan.layout.tensor = 8;
    plan.recompute = schedule::Recompute::full;
    CHECK(planner::moving_parts(plan) == 2);
    plan.sharding = schedule::Sharding::parameters;
    CHECK(planner::moving_parts(plan) == 3);
}

TEST_CASE("near ties are within the tolerance, and better in what they are named for") {
    const planner::RankedPlan best = plan_of(100, 0.97, 4, 2);
    planner::NearTies near;
    near.add(best, 4);
    near.add(plan_of(101, 0.7, 8, 2), 4);     // leaner
    near.add(plan_of(101.5, 0.98, 2), 4);     // simpler
    near.add(plan_of(101.9, 0.96, 4, 4), 2);  // fewer nodes
    near.add(plan_of(103, 0.1), 1);           // better in all three, but too slow
    const std::vector<planner::NearTie> ties = near.of(best, 4, 0.02);
    REQUIRE(ties.size() == 3);
    REQUIRE(with_merit(ties, "least memory"));
    CHECK(with_merit(ties, "least memory")->plan->value == 101);
    REQUIRE(with_merit(ties, "simplest"));
    CHECK(with_merit(ties, "simplest")->plan->value == 101.5);
    REQUIRE(with_merit(ties, "fewest nodes"));
    CHECK(with_merit(ties, "fewest nodes")->plan->value == 101.9);
    // A little less memory is no merit, and a plan with two merits is told once.
    planner::NearTies other;
    other.add(best, 4);
    other.add(plan_of(100.5, 0.95, 4, 2), 4);
    CHECK(other.of(best, 4, 0.02).empty());
    other.add(plan_of(101, 0.5), 4);
    const std::vector<planner::NearTie> both = other.of(best, 4, 0.02);
    REQUIRE(both.size() == 1);
    CHECK(both[0].merits == std::vector<std::string>{"least memory", "simplest"});
    // However slow: what leaves memory free.
    REQUIRE(near.within_memory(0.2));
    CHECK(near.within_memory(0.2)->value == 103);
    CHECK(near.within_memory(0.05) == nullptr);
}

TEST_CASE("near ties of a search are the best of everything it simulates") {
    const model::ModelGraph graph = load_graph("bert-large");
    const std::vector<planner::Target> targets = {target_of("p4d.24xlarge", 1)};
    planner::SearchRequest request;
    request.global_batch = 16;
    request.keep = 100000;  // every plan that fits is ranked
    request.uses_bounds = false;
    request.most_virtual_stages = 1;
    request.limits.tensor = {1, 2};
    request.limits.pipeline = {1, 2};
    request.limits.schedules = {"gpipe", "1f1b", "zb-h1"};
    core::Diagnostics diagnostics;
    const planner::SearchResult result = planner::search_plans(graph, targets, request, diagnostics);
    REQUIRE(result.plans.size() > 10);
    for (const double tolerance : {0.02, 0.2, 1.0}) {
        const planner::RankedPlan& best = result.plans.front();
        double memory = planner::memory_share(best);
        int parts = planner::moving_parts(best.plan);
        for (const planner::RankedPlan& plan : result.plans)
            if (plan.value <= best.value * (1 + tolerance)) {
                memory = std::min(memory, planner::memory_share(plan));
                parts = std::min(parts, planner::moving_parts(plan.plan));
            }
        const std::vector<planner::NearTie> ties = result.near_ties.of(best, 1, tolerance);
        INFO(tolerance);
        CHECK_FALSE(with_merit(ties, "fewest nodes"));
        const planner::NearTie *leanest = with_merit(ties, "least memory"),
                               *simplest = with_merit(ties, "simplest");
        if (memory < planner::memory_share(best) - planner::NearTies::memory_step) {
            REQUIRE(leanest);
            CHECK(planner::memory_share(*leanest->plan) == memory);
        } else {
            CHECK_FALSE(leanest);
        }
        if (parts < planner::moving_parts(best.plan)) {
            REQUIRE(simplest);
            CHECK(planner::moving_parts(simplest->plan->plan) == parts);
        } else {
            CHECK_FALSE(simplest);
        }
    }
}
