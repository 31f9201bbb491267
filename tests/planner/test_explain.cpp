// Why one plan is better than another: by what was asked for, and by what makes the slower one slower.
#include <catch2/catch.hpp>

#include "planner/explain.h"

namespace {

planner::RankedPlan plan_of(double compute, double sharding, double bubble, double value) {
    planner::RankedPlan plan;
    plan.value = value;
    sim::Breakdown& parts = plan.evaluation.breakdown;
    parts.compute = core::Seconds(compute);
    parts.sharding = core::Seconds(sharding);
    parts.bubble = core::Seconds(bubble);
    plan.evaluation.step_time = parts.compute + parts.sharding + parts.bubble;
    return plan;
}

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("the reason between two plans is what makes the slower one slower") {
    // The slower plan computes 3 s less and shards for 5 s more: that is why it is slower.
    const planner::RankedPlan fast = plan_of(9, 1, 0, 10), slow = plan_of(6, 6, 1, 13);
    const std::string why = planner::compare(fast, &slow, true, {}, planner::Objective::speed);
    CHECK(says(why, "takes 13 s against 10 s, chiefly sharding communication: 6 s against 1 s"));
    const std::string why_not = planner::compare(slow, &fast, false, {}, planner::Objective::speed);
    CHECK(says(why_not, "takes 10 s against 13 s, chiefly sharding communication: 1 s against 6 s"));
    CHECK_FALSE(says(why + why_not, "chiefly compute"));
}

TEST_CASE("the reason between two plans names what was asked for") {
    const planner::RankedPlan cheap = plan_of(9, 1, 0, 0.5), fast = plan_of(5, 1, 0, 0.75);
    const std::string why = planner::compare(cheap, &fast, true, {}, planner::Objective::cost);
    CHECK(says(why, "costs 0.75 USD a step against 0.5, and takes 6 s against 10 s"));
    // Of equal plans no part is the reason.
    CHECK_FALSE(says(planner::compare(cheap, &cheap, true, {}, planner::Objective::speed), "chiefly"));
}
