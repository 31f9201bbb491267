// Fewer nodes, same optimum: nodes that cost nothing wherever they lie.
#pragma once

#include <cstddef>
#include <vector>

#include "partition/replicated/replicated_placement.h"

namespace partition {

struct ReducedReplication {
    ReplicatedProblem problem;
    std::vector<std::size_t> kept;  // of each node of `problem`, the original
};

// Leaves out every node that runs in no time, holds no memory and moves no bytes, on any number of devices;
// what it stood between keeps its order. Such nodes, free to lie in many stages, multiply the sets of last
// nodes: of 17,914 of Piper's gnmt a few hundred remain.
ReducedReplication without_free_nodes(const ReplicatedProblem& problem);

// Stages of the reduced problem with the nodes that were left out: each where the last of its predecessors
// lies, or in the first stage.
std::vector<ReplicatedStage> with_free_nodes(const ReplicatedProblem& problem,
                                             const ReducedReplication& reduced,
                                             const std::vector<ReplicatedStage>& stages);

}  // namespace partition
