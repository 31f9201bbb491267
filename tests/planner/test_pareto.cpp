// The front of time, cost and memory.
#include <algorithm>
#include <catch2/catch.hpp>

#include "core/diagnostics.h"
#include "planner/pareto.h"
#include "tests/planner/questions.h"

namespace {

planner::RankedPlan point(double step, double memory, double rate, int tensor = 1) {
    planner::RankedPlan plan;
    plan.evaluation.step_time = core::Seconds(step);
    plan.evaluation.peak_memory = core::Bytes(memory);
    plan.evaluation.rate = core::DollarsPerSecond(rate);
    plan.plan.layout.tensor = tensor;
    return plan;
}

std::vector<planner::RankedPlan> front_of(const std::vector<planner::RankedPlan>& plans) {
    std::vector<planner::RankedPlan> front;
    for (const planner::RankedPlan& plan : plans) planner::add_to_front(front, plan);
    return front;
}

}  // namespace

TEST_CASE("no plan of a front is as good as another in all three figures") {
    // Fast and large; slow and small; slow and cheap; worse than the first in all; the first once more.
    const auto front = front_of({point(2, 21, 1), point(1, 20, 1), point(4, 5, 1), point(3, 20, 0.1),
                                 point(1.5, 30, 1), point(1, 20, 1)});
    REQUIRE(front.size() == 3);
    for (const planner::RankedPlan& plan : front) CHECK(plan.evaluation.step_time.value != 2);
    // Without a price a plan is never the cheap one.
    CHECK(front_of({point(1, 20, 1), point(2, 20, 0)}).size() == 1);
    CHECK(front_of({point(1, 20, 1), point(2, 10, 0)}).size() == 2);
}

TEST_CASE("rows of a front differ for a person") {
    const std::vector<planner::Target> targets = {target_of("p4d.24xlarge", 1)};
    const auto rows = planner::told_apart(
        {point(3, 5, 1, 4), point(1, 20, 1, 1), point(1.01, 19.8, 1, 2), point(2, 10, 1, 1)}, targets, 0.02);
    // The third is within 2 % of the second, the fourth has the second's degrees.
    REQUIRE(rows.size() == 2);
    CHECK(rows[0].evaluation.step_time.value == 1);
    CHECK(rows[1].evaluation.step_time.value == 3);
}

TEST_CASE("the front of a search is that of everything it simulates") {
    const model::ModelGraph graph = load_graph("bert-large");
    const std::vector<planner::Target> targets = {target_of("p4d.24xlarge", 1)};
    planner::SearchRequest request;
    request.global_batch = 16;
    request.keeps_front = true;
    request.keep = 100000;  // every plan that fits is ranked
    request.uses_bounds = false;
    request.most_virtual_stages = 1;
    request.limits.tensor = {1, 2};
    request.limits.pipeline = {1};
    core::Diagnostics diagnostics;
    const planner::SearchResult result = planner::search_plans(graph, targets, request, diagnostics);
    REQUIRE(result.plans.size() > 10);
    REQUIRE(result.front.size() > 1);
    const auto is_beaten = [](const planner::RankedPlan& plan, const planner::RankedPlan& by) {
        return by.evaluation.step_time < plan.evaluation.step_time &&
               by.evaluation.peak_memory < plan.evaluation.peak_memory;
    };
    for (const planner::RankedPlan& row : result.front)
        for (const planner::RankedPlan& plan : result.plans) CHECK_FALSE(is_beaten(row, plan));
    // And whatever is not in it is covered by a row of it.
    for (const planner::RankedPlan& plan : result.plans)
        CHECK(std::any_of(result.front.begin(), result.front.end(), [&](const planner::RankedPlan& row) {
            return row.evaluation.step_time <= plan.evaluation.step_time &&
                   row.evaluation.peak_memory <= plan.evaluation.peak_memory;
        }));
}
