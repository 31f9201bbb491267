// The best order for given times: published schedules, then annealing on their words with exact evaluation;
// branch and bound closes small cases (order_proof.h). Deterministic for a seed: the budget is counted in
// work, of which `time_limit` is a cautious estimate, and only ten times that limit stops by the clock.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "planner/order/order_evaluator.h"

namespace planner {

struct SearchBudget {
    core::Seconds time_limit{0.6};
    std::uint64_t seed = 1;
};

struct FoundSchedule {
    schedule::Schedule schedule;
    std::vector<core::Seconds> releases;  // sim::ScheduleCosts::releases at which the objective is reached
    core::Seconds objective;
    core::Seconds lower_bound;
    bool is_proven_optimal = false;  // objective equals lower_bound
    std::string start;               // the heuristic the search began with
    core::Seconds start_objective;
    std::int64_t evaluations = 0;  // orders timed by the local search
    std::int64_t nodes = 0;        // of branch and bound
};

// Nothing when no order respects the memory limit (one micro-batch alone exceeds it, or its actions leave
// memory behind).
std::optional<FoundSchedule> search_schedule(const OrderProblem& problem, const SearchBudget& budget = {});

// The same over both placements of two chunks a rank, loop and V; for other numbers of chunks it is the
// loop's.
std::optional<FoundSchedule> search_placements(const OrderProblem& problem, const SearchBudget& budget = {});

// No order is shorter (ranks' work, what a rank can do before its first gradient returns, and one
// micro-batch's chain).
core::Seconds order_lower_bound(const OrderProblem& problem);

}  // namespace planner
