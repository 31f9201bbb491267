// Orders that repeat: one pattern of a micro-batch through all stages and back, started anew every period, as
// the building blocks of the V-shaped schedules (arXiv 2405.15362) but for any stages, times and limit. Where
// memory is tight, long words of this kind are out of reach of moves of single letters.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "planner/order/order_evaluator.h"

namespace planner {

// The orders of the shortest periods found that keep to the memory limit, shortest first; `patterns` are
// tried in all. Deterministic for a seed.
std::vector<Order> periodic_orders(const OrderProblem& problem, OrderEvaluator& evaluator,
                                   std::int64_t patterns, std::uint64_t seed);

}  // namespace planner
