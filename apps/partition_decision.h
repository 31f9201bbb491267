// Saved decisions of `smplan partition`: written with the hash of the graph they were made for, read again to be judged.
#pragma once

#include <optional>
#include <string>

#include "core/diagnostics.h"
#include "planner/hierarchical_placement.h"
#include "planner/placement.h"
#include "planner/replicated_placement.h"
#include "schedule/partition_file.h"

namespace apps {

schedule::PartitionFile decision_of(const planner::PlacementProblem& problem, const planner::PlacementResult& result);
schedule::PartitionFile decision_of(const planner::ReplicatedProblem& problem, const planner::ReplicatedResult& result);
schedule::PartitionFile decision_of(const planner::HierarchicalProblem& problem, const planner::HierarchicalResult& result);

// Stages of a decision with their loads; names that are unknown, missing or doubly placed are diagnosed, as is a graph that is not the one decided for. `path` is the
// decision's file. Limits that the stages do not respect are no errors but an answer.
std::optional<planner::PlacementResult> apply_decision(const schedule::PartitionFile& file, const std::string& path, const std::string& graph_hash,
                                                       std::optional<int> default_partition, const planner::PlacementProblem& problem, core::Diagnostics& diagnostics);
std::optional<planner::ReplicatedResult> apply_decision(const schedule::PartitionFile& file, const std::string& path, const planner::ReplicatedProblem& problem,
                                                        core::Diagnostics& diagnostics);
std::optional<planner::HierarchicalResult> apply_decision(const schedule::PartitionFile& file, const std::string& path, const planner::HierarchicalProblem& problem,
                                                          core::Diagnostics& diagnostics);

}  // namespace apps
