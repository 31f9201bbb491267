// Exact answers about small orders by branch and bound: whether one has an objective of at most a target, and
// below which value none has.
//
// Every pair of actions of a rank that no dependency orders is a decision (Carlier and Pinson, Management
// Science 35, 1989). Longest paths between all actions are kept closed while pairs are decided; a target on
// spans is an arc back from a rank's last action to its first, so a decision that would make a cycle of
// positive length is impossible and its opposite is forced. On each rank the preemptive one-machine bound
// (Jackson) of its open actions is compared with the target.
#pragma once

#include <cstdint>
#include <optional>

#include "planner/order/order_evaluator.h"

namespace planner {

struct OrderSearch {
    std::optional<Order> order;  // keeps to memory, and its objective is at most the target
    bool is_complete = false;    // the whole tree was seen: without an order there is none
    std::int64_t nodes = 0;
};

// Actions beyond which the tables (actions squared) and the trees are too large.
constexpr int most_provable_actions = 200;

// All durations must be positive: then the decided pairs of a rank are its order.
OrderSearch find_order(const OrderProblem& problem, double target, std::int64_t node_budget);

// The greatest value in [known, objective] that no order undercuts and that deciding nothing but what is
// forced can show; `known` holds already.
double propagated_bound(const OrderProblem& problem, double known, double objective);

}  // namespace planner
