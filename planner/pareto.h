// The front of step time, cost of a step and peak memory: plans than which no other is better in one of them
// and no worse in the others.
#pragma once

#include <vector>

#include "planner/search.h"

namespace planner {

// In dollars a step; without a known price more than any.
double cost_of_step(const RankedPlan& plan);
// Takes the plan where none of the front is as good in all three, and what it is as good as leaves.
void add_to_front(std::vector<RankedPlan>& front, const RankedPlan& plan);
// By step time, one row for each plan that differs for a person: in its cluster, degrees, micro-batch or
// recomputation, and by more than `tolerance` (0.02: 2 %) in one of the three from every row before it.
std::vector<RankedPlan> told_apart(std::vector<RankedPlan> front, const std::vector<Target>& targets,
                                   double tolerance);

}  // namespace planner
