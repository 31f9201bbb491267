// What the two builders of zero-bubble orders promise whatever stages cost: a limit kept, and no stage that
// asks for more than the one before has given.
#include <catch2/catch.hpp>
#include <cmath>

#include "core/random.h"
#include "schedule/pipeline/zero_bubble_orders.h"

namespace {

using schedule::ActionLists;

int forwards_before_first_gradient(const std::vector<schedule::Action>& list) {
    int count = 0;
    for (const schedule::Action& action : list) {
        if (action.kind != schedule::ActionKind::forward) break;
        ++count;
    }
    return count;
}

void check_order(const schedule::PipelineShape& shape, const ActionLists& lists, double limit) {
    REQUIRE(lists.size() == static_cast<std::size_t>(shape.ranks));
    for (const auto& list : lists) CHECK(list.size() == static_cast<std::size_t>(3 * shape.micro_batches));
    CHECK(std::isfinite(schedule::play_order(shape, lists, limit).span));
    for (std::size_t s = 1; s < lists.size(); ++s)
        CHECK(forwards_before_first_gradient(lists[s]) <= forwards_before_first_gradient(lists[s - 1]));
}

}  // namespace

// The first stage holds two micro-batches (2 x 2 of 5), the second has room and, before the slow third, time
// for all three.
TEST_CASE("a stage that memory stops in the warm-up is not overtaken by the next") {
    schedule::PipelineShape shape;
    shape.ranks = 3;
    shape.micro_batches = 3;
    shape.stage_costs = {{1, 1, 1, 2, 0, -2}, {1, 1, 1, 1, 0, -1}, {5, 5, 1, 1, 0, -1}};
    const auto lists = schedule::zero_bubble_by_rounds(shape, 5);
    REQUIRE(lists);
    check_order(shape, *lists, 5);
    CHECK(forwards_before_first_gradient((*lists)[0]) == 2);
}

TEST_CASE("zero-bubble orders keep to their limit for any times and any memory of stages") {
    core::Random random(11);
    int built = 0;
    for (int trial = 0; trial < 400; ++trial) {
        schedule::PipelineShape shape;
        shape.ranks = 2 + static_cast<int>(random.below(5));
        shape.micro_batches = 1 + static_cast<int>(random.below(8));
        shape.transfer = static_cast<double>(random.below(3));
        double most = 0;
        for (int s = 0; s < shape.ranks; ++s) {
            auto cost = [&] { return 1 + static_cast<double>(random.below(5)); };
            schedule::RelativeStageCost stage{cost(), cost(), cost(), cost(), 0, 0};
            stage.memory_backward_weight = -stage.memory_forward;
            most = std::max(most, stage.memory_forward);
            shape.stage_costs.push_back(stage);
        }
        const double limit = most * static_cast<double>(1 + random.below(4));
        INFO("trial " << trial << ": " << shape.ranks << " ranks, " << shape.micro_batches
                      << " micro-batches, limit " << limit);
        for (const auto& build : {schedule::zero_bubble_by_rounds, schedule::zero_bubble_by_clock})
            if (const auto lists = build(shape, limit)) {
                check_order(shape, *lists, limit);
                ++built;
            }
    }
    CHECK(built > 400);
}
