// schedule = "auto" of a plan: the search for its order with the plan's own stage times, transfers and
// memory, and the plan that holds the order found.
#pragma once

#include <optional>
#include <string>

#include "cluster/topology.h"
#include "core/diagnostics_fwd.h"
#include "model/model_fwd.h"
#include "planner/order/schedule_search.h"
#include "schedule/plan/plan.h"
#include "sim/evaluate.h"

namespace planner {

// Time and memory of one micro-batch in each virtual stage of the plan on this cluster: kernels with their
// tensor-parallel collectives, the slowest transfer between two stages, activations as the split backward
// frees them, and the memory that the tightest device has for them. Nothing, with diagnostics, when the
// device cannot price it.
std::optional<OrderProblem> order_problem(const model::ModelGraph& graph, const cluster::Cluster& cluster,
                                          const schedule::Plan& plan, core::Diagnostics& diagnostics);

struct OrderedPlan {
    schedule::Plan plan;      // schedule: an explicit order in the text form, or the registered one that the
                              // simulation says is faster
    std::string explanation;  // one line: what was searched, found and proven
    std::optional<sim::Evaluation> evaluation =
        {};  // of an order that was searched: the full simulation that judged it
};

// The plan with the order found where a full simulation finds it faster than the best registered schedule of
// whole sequences, else with that one. With one pipeline rank there is nothing to order. `plan.schedule` is
// not read.
std::optional<OrderedPlan> with_searched_order(const model::ModelGraph& graph,
                                               const cluster::Cluster& cluster, const schedule::Plan& plan,
                                               core::Diagnostics& diagnostics,
                                               const SearchBudget& budget = {});

}  // namespace planner
