// An incumbent in milliseconds: dynamic programming over a few topological orders, each taken as a chain;
// where its table would be too large or the time is over, stages filled one after the other.
#pragma once

#include <optional>
#include <vector>

#include "partition/deadline.h"
#include "partition/placement.h"

namespace partition {

// The best placement whose stages are consecutive in one of the orders tried (as given, depth first, breadth
// first, each forwards and from the sinks); empty when none is found that respects the limits. Every such
// placement is contiguous. O(items^2 * devices) an order, in at most some 300 MB; after the deadline only
// what takes O(items) is tried. `lower_bound`: placement_lower_bound, where it is known already.
std::vector<PlacedStage> place_on_orders(const PlacementProblem& problem, const Deadline& deadline = {},
                                         std::optional<core::Seconds> lower_bound = std::nullopt);

}  // namespace partition
