#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>

#include "core/random.h"
#include "partition/hierarchical/hierarchical_placement.h"
#include "partition/placement.h"
#include "partition/replicated/replicated_placement.h"

using namespace partition;

namespace {

// Chains between a fork and a join, with loads that differ.
PlacementProblem fork_and_join(int chains, int length, int devices) {
    PlacementProblem problem;
    core::Random random(7);
    const int last = chains * length + 1;
    for (int i = 0; i <= last; ++i) {
        PlacementItem item;
        item.nodes = {i};
        item.accelerator_time = item.cpu_time =
            core::Seconds(1 + static_cast<double>(random.below(1000)) / 7);
        problem.items.push_back(item);
    }
    for (int chain = 0; chain < chains; ++chain)
        for (int i = 0; i <= length; ++i) {
            const std::size_t before = i == 0 ? 0 : chain * length + i,
                              after = i == length ? last : chain * length + i + 1;
            problem.precedence.emplace_back(before, after);
            problem.transfers.push_back(
                {before, {after}, core::Seconds(static_cast<double>(random.below(20)))});
        }
    std::sort(problem.precedence.begin(), problem.precedence.end());
    problem.accelerators = devices;
    return problem;
}

// Stops when it was asked so often.
std::function<bool()> after(int most, std::atomic<int>& asked) {
    return [most, &asked] { return ++asked > most; };
}

// What holds of a search that ends early, whenever that is: the optimum lies between bound and objective.
template <class Result>
void check_against(const Result& optimum, const Result& early) {
    const double rounding = 1e-9 * optimum.objective.value;
    CHECK_FALSE(early.is_proven_infeasible);
    CHECK(early.lower_bound.value <= optimum.objective.value + rounding);
    if (early.is_feasible) CHECK(early.objective.value >= optimum.objective.value - rounding);
    if (early.is_proven_optimal) CHECK(early.objective.value == Approx(optimum.objective.value));
}

ReplicatedProblem replicated_chain() {
    ReplicatedProblem problem;
    for (std::size_t v = 0; v < 8; ++v) {
        ConfigurableNode node;
        node.id = static_cast<std::int64_t>(v);
        node.configurations[1].push_back({"plain",
                                          core::Seconds(1 + static_cast<double>(v * v % 5)),
                                          core::Bytes(2),
                                          core::Bytes(1),
                                          core::Bytes(1),
                                          {},
                                          {}});
        problem.nodes.push_back(node);
        if (v > 0) problem.edges.push_back({v - 1, v, core::Bytes(static_cast<double>(1 + v % 3))});
    }
    problem.devices = 6;
    problem.memory_limit = core::Bytes(100);
    problem.bandwidth = core::BytesPerSecond(4);
    problem.micro_batches = 12;
    return problem;
}

HierarchicalProblem two_levels() {
    HierarchicalProblem problem;
    core::Random random(3);
    for (std::size_t i = 0; i < 12; ++i) {
        problem.nodes.push_back({std::to_string(i), "",
                                 core::Seconds(1 + static_cast<double>(random.below(9))),
                                 core::Seconds(1 + static_cast<double>(random.below(9))),
                                 core::Bytes(static_cast<double>(random.below(12))),
                                 core::Bytes(static_cast<double>(random.below(300)))});
        if (i > 0) problem.edges.emplace_back(i - 1, i);
    }
    problem.levels = {{4, core::BytesPerSecond(20)}, {2, core::BytesPerSecond(5)}};
    return problem;
}

}  // namespace

TEST_CASE(
    "a placement stopped after any number of looks has the optimum between its bound and its objective") {
    const PlacementProblem problem = fork_and_join(4, 7, 5);
    const PlacementResult optimum = place_contiguous(problem);
    REQUIRE(optimum.is_proven_optimal);
    int unproven = 0;
    for (const int most : {0, 1, 2, 3, 5, 8, 20, 50, 100, 200}) {
        INFO("stopped after " << most << " looks");
        std::atomic<int> asked = 0;
        const PlacementResult early = place_contiguous(problem, {.is_stopped = after(most, asked)});
        // Stages filled one after the other need no time, so there always is a placement.
        CHECK(early.is_feasible);
        check_against(optimum, early);
        unproven += !early.is_proven_optimal;
    }
    CHECK(unproven > 0);  // else nothing was stopped
}

TEST_CASE("a stop ends a placement that would take hours, contiguous or not") {
    // Some 13^12 = 2e13 sets of items that stages may begin at.
    const PlacementProblem problem = fork_and_join(12, 12, 16);
    for (const bool is_contiguous : {true, false}) {
        INFO((is_contiguous ? "contiguous" : "not contiguous"));
        std::atomic<int> asked = 0;
        const PlacementOptions options{.time_limit = core::Seconds(1e6), .is_stopped = after(200, asked)};
        const PlacementResult early =
            is_contiguous ? place_contiguous(problem, options) : place_anywhere(problem, options);
        CHECK(asked > 200);
        REQUIRE(early.is_feasible);
        CHECK(early.objective == largest_load(problem, early.stages));
        CHECK(early.lower_bound <= early.objective);
        CHECK_FALSE(early.is_proven_optimal);
    }
}

TEST_CASE(
    "replicated stages stopped after any number of looks have the optimum between bound and objective") {
    const ReplicatedProblem problem = replicated_chain();
    const ReplicatedResult optimum = place_replicated(problem);
    REQUIRE(optimum.is_proven_optimal);
    int unproven = 0;
    for (const int most : {0, 1, 10, 35, 36, 40, 60, 100, 300}) {
        INFO("stopped after " << most << " looks");
        std::atomic<int> asked = 0;
        const ReplicatedResult early = place_replicated(problem, {.is_stopped = after(most, asked)});
        check_against(optimum, early);
        unproven += !early.is_proven_optimal;
    }
    CHECK(unproven > 0);
}

TEST_CASE("stages over levels of bandwidth end with a stop, and claim nothing then that does not hold") {
    const HierarchicalProblem problem = two_levels();
    const HierarchicalResult optimum = place_hierarchical(problem);
    REQUIRE(optimum.is_proven_optimal);
    const HierarchicalResult stopped = place_hierarchical(problem, {.is_stopped = [] { return true; }});
    CHECK_FALSE(stopped.is_proven_optimal);
    check_against(optimum, stopped);
}
