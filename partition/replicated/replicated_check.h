// The objective of replicated stages that are given: saved and hand-made decisions are judged by it.
#pragma once

#include <string>
#include <vector>

#include "partition/replicated/replicated_placement.h"

namespace partition {

// Of everything that decides a placement but devices, memory, bandwidth and micro-batches: 16 hexadecimal
// digits.
std::string hash_of(const ReplicatedProblem& problem);

// No placement beats perfect balance of every node's cheapest configuration, nor the fastest single node.
core::Seconds replicated_lower_bound(const ReplicatedProblem& problem);

// Times, memory and the objective of stages (nodes, degrees and configurations are read, in pipeline order).
// Not feasible, with the reason, where a stage runs before one that feeds it, degrees exceed devices or do
// not divide the micro-batches, or memory does not suffice.
ReplicatedResult judge_replicated(const ReplicatedProblem& problem,
                                  const std::vector<ReplicatedStage>& stages);

}  // namespace partition
