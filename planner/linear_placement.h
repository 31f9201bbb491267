// An incumbent in milliseconds: dynamic programming over a few topological orders, each taken as a chain.
#pragma once

#include <vector>

#include "planner/placement.h"

namespace planner {

// The best placement whose stages are consecutive in one of the orders tried (as given, depth first, breadth first, each forwards and from the sinks);
// empty when none respects the limits. Every such placement is contiguous. O(items^2 * devices) an order.
std::vector<PlacedStage> place_on_orders(const PlacementProblem& problem);

}  // namespace planner
