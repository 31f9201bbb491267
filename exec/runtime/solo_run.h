// Ranks that perform their lists without their peers: what is sent goes nowhere, what should come is zero and
// there at once. Operators take the time that they take in the run (the same arrays, the same order, as many
// cores at work), and nothing waits.
#pragma once

#include <memory>
#include <vector>

#include "exec/data.h"
#include "exec/runtime/rank_run.h"

namespace exec {

// The records of these ranks, which work at the same time, each in a thread on a core of its own. Losses mean
// nothing. No checkpoints, no overlap.
std::vector<RankRecord> run_alone(const schedule::Program& program, const model::ModelGraph& graph,
                                  std::shared_ptr<const DataSource> data, const RunOptions& options,
                                  const std::vector<int>& ranks);

}  // namespace exec
