// The objective of stages that are given by their nodes and replicas: what searches are checked by, and saved
// or hand-made decisions judged.
#pragma once

#include <string>
#include <vector>

#include "partition/hierarchical/hierarchical_placement.h"

namespace partition {

// Of everything that decides a placement but levels and limits: 16 hexadecimal digits.
std::string hash_of(const HierarchicalProblem& problem);

// Of one stage on all workers, without a limit of memory.
core::Seconds everything_replicated(const HierarchicalProblem& problem);
// Compute over all workers. A stage costs at least its compute over its own, so the largest is at least this
// mean.
core::Seconds mean_compute(const HierarchicalProblem& problem);
// Loads, memory and the objective of stages (nodes and replicas are read, in pipeline order). Not feasible,
// with the reason, where a stage runs before one that feeds it, the replicas of some level do not add up to
// its workers, or memory does not suffice.
HierarchicalResult judge_hierarchical(const HierarchicalProblem& problem,
                                      std::vector<HierarchicalStage> stages);

}  // namespace partition
