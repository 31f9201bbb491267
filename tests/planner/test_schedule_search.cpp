#include <catch2/catch.hpp>

#include <chrono>
#include <fstream>
#include <sstream>

#include "core/csv.h"
#include "core/random.h"
#include "planner/schedule_search.h"
#include "schedule/verify.h"

namespace {

using planner::OrderObjective;
using planner::OrderProblem;

OrderProblem problem_of(int ranks, int micro_batches, OrderObjective objective) {
    OrderProblem problem;
    problem.ranks = ranks;
    problem.micro_batches = micro_batches;
    problem.objective = objective;
    problem.stages.resize(static_cast<std::size_t>(ranks));
    return problem;
}

OrderProblem random_problem(core::Random& random, int ranks, int micro_batches, OrderObjective objective) {
    OrderProblem problem = problem_of(ranks, micro_batches, objective);
    for (sim::StageCost& stage : problem.stages) {
        stage.forward = core::Seconds(1.0 + static_cast<double>(random.below(5)));
        stage.backward_input = core::Seconds(1.0 + static_cast<double>(random.below(5)));
        stage.backward_weight = core::Seconds(1.0 + static_cast<double>(random.below(5)));
    }
    problem.transfer = core::Seconds(static_cast<double>(random.below(3)));
    problem.memory_limit = core::Bytes(1.0 + static_cast<double>(random.below(static_cast<std::uint64_t>(micro_batches))));
    return problem;
}

void append_words(std::vector<std::vector<std::uint8_t>>& words, std::vector<std::uint8_t> word, int f, int i, int w, int micro_batches) {
    if (w == micro_batches) {
        words.push_back(word);
        return;
    }
    auto follow = [&](std::uint8_t letter, int df, int di, int dw) {
        std::vector<std::uint8_t> longer = word;
        longer.push_back(letter);
        append_words(words, longer, f + df, i + di, w + dw, micro_batches);
    };
    if (f < micro_batches) follow(planner::F, 1, 0, 0);
    if (i < f) follow(planner::I, 0, 1, 0);
    if (w < i) follow(planner::W, 0, 0, 1);
}

// Every order of a tiny problem.
double exhaustive_optimum(const OrderProblem& problem) {
    planner::OrderEvaluator evaluator(problem);
    std::vector<std::vector<std::uint8_t>> words;
    append_words(words, {}, 0, 0, 0, problem.micro_batches);
    double best = 1e300;
    for (const auto& first : words)
        for (const auto& second : words)
            if (evaluator.is_allowed(first, 0) && evaluator.is_allowed(second, 1)) best = std::min(best, evaluator.evaluate({first, second}));
    return best;
}

schedule::ScheduleLimits limits_of(const OrderProblem& problem) {
    schedule::ScheduleLimits limits;
    limits.memory_limit = problem.memory_limit;
    for (const sim::StageCost& stage : problem.stages) limits.activation.push_back({stage.memory_forward, stage.memory_backward_input, stage.memory_backward_weight});
    return limits;
}

sim::ScheduleCosts costs_of(const OrderProblem& problem) {
    sim::ScheduleCosts costs;
    costs.stages = problem.stages;
    costs.transfer = problem.transfer;
    return costs;
}

}  // namespace

TEST_CASE("The search reaches the optimum of an exhaustive enumeration for two ranks and three micro-batches") {
    core::Random random(7);
    for (int trial = 0; trial < 30; ++trial)
        for (const OrderObjective objective : {OrderObjective::makespan, OrderObjective::span}) {
            const OrderProblem problem = random_problem(random, 2, 3, objective);
            const auto found = search_schedule(problem, {core::Seconds(0.1), 1});
            REQUIRE(found);
            const double optimum = exhaustive_optimum(problem);
            INFO("trial " << trial);
            CHECK(found->objective.value == Approx(optimum).epsilon(1e-12));
            CHECK(found->lower_bound.value <= optimum * (1 + 1e-12));
        }
}

TEST_CASE("What is found is a valid schedule within memory that takes as long as it says") {
    core::Random random(11);
    for (int trial = 0; trial < 20; ++trial)
        for (const OrderObjective objective : {OrderObjective::makespan, OrderObjective::span}) {
            const OrderProblem problem = random_problem(random, 2 + static_cast<int>(random.below(4)), 2 + static_cast<int>(random.below(6)), objective);
            const auto found = search_schedule(problem, {core::Seconds(0.02), 3});
            REQUIRE(found);
            CHECK(verify(found->schedule, limits_of(problem)).empty());
            sim::ScheduleCosts costs = costs_of(problem);
            costs.releases = found->releases;
            const sim::ScheduleTiming timing = time_schedule(found->schedule, costs);
            CHECK((objective == OrderObjective::span ? timing.greatest_span() : timing.makespan).value == Approx(found->objective.value).epsilon(1e-9));
            CHECK(found->objective <= found->start_objective);
            CHECK(found->lower_bound <= found->objective);
            CHECK(found->is_proven_optimal == (found->objective.value <= found->lower_bound.value * (1 + 1e-12)));
        }
}

TEST_CASE("The same seed finds the same order") {
    core::Random random(5);
    for (int trial = 0; trial < 5; ++trial) {
        const OrderProblem problem = random_problem(random, 4, 6, OrderObjective::span);
        const auto first = search_schedule(problem, {core::Seconds(0.05), 9}), second = search_schedule(problem, {core::Seconds(0.05), 9});
        REQUIRE((first && second));
        CHECK(first->schedule == second->schedule);
        CHECK(first->evaluations == second->evaluations);
    }
}

TEST_CASE("A limit below one micro-batch has no order") {
    OrderProblem problem = problem_of(2, 2, OrderObjective::makespan);
    problem.memory_limit = core::Bytes(0.5);
    CHECK_FALSE(search_schedule(problem));
}

TEST_CASE("Eight stages and 32 micro-batches come within 3 % of the bound in under two seconds") {
    for (const double transfer : {0.0, 0.05})
        for (const double limit : {15.0, 16.0, 0.0})
            for (const OrderObjective objective : {OrderObjective::makespan, OrderObjective::span}) {
                OrderProblem problem = problem_of(8, 32, objective);
                problem.transfer = core::Seconds(transfer);
                problem.memory_limit = core::Bytes(limit);
                const auto begin = std::chrono::steady_clock::now();
                const auto found = search_schedule(problem);
                const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
                REQUIRE(found);
                INFO("transfer " << transfer << " limit " << limit << ": " << found->objective.value << " against " << found->lower_bound.value);
                CHECK(found->objective.value <= 1.03 * found->lower_bound.value);
                CHECK(spent.count() < 2);
            }
}

TEST_CASE("The proven optima of the zero-bubble integer program with unequal stage times are reached") {
    const std::string path = std::string(SHARED_DIR) + "/reference/schedules/zb_ilp_unequal_stage_optima.csv";
    if (!std::ifstream(path)) {
        WARN("skipped: no " << path);
        return;
    }
    core::Diagnostics diagnostics;
    const auto table = core::load_csv(path, {"p", "m", "T_F_per_stage", "T_B_per_stage", "T_W_per_stage", "T_comm", "max_mem", "heuristic_cost", "ilp_cost", "ilp_status"}, diagnostics);
    REQUIRE(table);
    int reached = 0, rows = 0, proven = 0;
    for (const core::CsvRow& row : table->rows) {
        auto number = [&](const char* column) { return *core::parse_real(table->cell(row, column)); };
        OrderProblem problem = problem_of(static_cast<int>(number("p")), static_cast<int>(number("m")), OrderObjective::span);
        auto times = [&](const char* column) {
            std::istringstream text{std::string(table->cell(row, column))};
            std::vector<core::Seconds> result;
            for (double time = 0; text >> time;) result.push_back(core::Seconds(time));
            return result;
        };
        const auto forward = times("T_F_per_stage"), input = times("T_B_per_stage"), weight = times("T_W_per_stage");
        for (std::size_t s = 0; s < problem.stages.size(); ++s) {
            problem.stages[s].forward = forward.at(s);
            problem.stages[s].backward_input = input.at(s);
            problem.stages[s].backward_weight = weight.at(s);
        }
        problem.transfer = core::Seconds(number("T_comm"));
        problem.memory_limit = core::Bytes(number("max_mem"));
        const auto found = search_schedule(problem, {core::Seconds(0.3), 1});
        REQUIRE(found);
        INFO(table->cell(row, "T_F_per_stage") << " | " << table->cell(row, "T_B_per_stage") << " | " << table->cell(row, "T_W_per_stage"));
        CHECK((table->cell(row, "heuristic_cost").empty() || found->objective.value <= number("heuristic_cost") + 1e-9));
        if (table->cell(row, "ilp_status").find("not") != std::string_view::npos) continue;
        ++rows;
        CHECK(found->objective.value >= number("ilp_cost") - 1e-9);
        CHECK(found->lower_bound.value <= number("ilp_cost") + 1e-9);
        reached += found->objective.value <= number("ilp_cost") + 1e-9;
        proven += found->is_proven_optimal;
    }
    CHECK(reached == rows);
    WARN(reached << " of " << rows << " proven optima reached, " << proven << " of them proven here too");
}
