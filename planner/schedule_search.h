// The best order for given times: zero-bubble heuristics, then annealing on words over {F, I, W} with exact evaluation; exact branch and bound closes small cases.
// Deterministic for a seed: the budget is counted in work, of which `time_limit` is a cautious estimate, and only ten times that limit stops by the clock.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "planner/order_evaluator.h"

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
    bool is_proven_optimal = false;       // objective equals lower_bound
    std::string start;                    // the heuristic the search began with
    core::Seconds start_objective;
    std::int64_t evaluations = 0;
};

// Nothing when no order respects the memory limit (one micro-batch alone exceeds it, or its actions leave memory behind).
std::optional<FoundSchedule> search_schedule(const OrderProblem& problem, const SearchBudget& budget = {});

// No order is shorter (ranks' work, what a rank can do before its first gradient returns, and one micro-batch's chain).
core::Seconds order_lower_bound(const OrderProblem& problem);

}  // namespace planner
