// How many contiguous partitions a plan has, and the stages of one.
#pragma once

#include <cstdint>
#include <vector>

#include "model/model_fwd.h"
#include "schedule/plan/plan.h"

namespace planner {

// May all partitions of such a plan be looked at? Of plans with one stage a rank, whose busiest rank bounds
// them tightly, and of plans that have few of them.
bool covers_every_partition(const schedule::Plan& plan, std::size_t units);
inline constexpr double most_partitions = 1000;  // of a plan with several stages a rank, if all are covered
// Has it more than that, but so few that those with the least bounds are worth a look?
bool has_partitions_to_explore(const schedule::Plan& plan, std::size_t units);

// Operators of the stages that begin at these units.
std::vector<model::OperatorRange> ranges_of(const model::ModelGraph& graph,
                                            const std::vector<std::int32_t>& first_units);

}  // namespace planner
