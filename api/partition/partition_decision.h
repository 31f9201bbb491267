// Saved decisions of `smplan partition`: written with the hash of the graph they were made for, read again to
// be judged.
#pragma once

#include <optional>
#include <string>

#include "core/diagnostics_fwd.h"
#include "partition/hierarchical/hierarchical_placement.h"
#include "partition/placement.h"
#include "partition/replicated/replicated_placement.h"
#include "schedule/plan/partition_file.h"

namespace api {

schedule::PartitionFile decision_of(const partition::PlacementProblem& problem,
                                    const partition::PlacementResult& result);
schedule::PartitionFile decision_of(const partition::ReplicatedProblem& problem,
                                    const partition::ReplicatedResult& result);
schedule::PartitionFile decision_of(const partition::HierarchicalProblem& problem,
                                    const partition::HierarchicalResult& result);

// Stages of a decision with their loads; names that are unknown, missing or doubly placed are diagnosed, as
// is a graph that is not the one decided for. `path` is the decision's file. Limits that the stages do not
// respect are no errors but an answer.
std::optional<partition::PlacementResult> apply_decision(const schedule::PartitionFile& file,
                                                         const std::string& path,
                                                         const std::string& graph_hash,
                                                         std::optional<int> default_partition,
                                                         const partition::PlacementProblem& problem,
                                                         core::Diagnostics& diagnostics);
std::optional<partition::ReplicatedResult> apply_decision(const schedule::PartitionFile& file,
                                                          const std::string& path,
                                                          const partition::ReplicatedProblem& problem,
                                                          core::Diagnostics& diagnostics);
std::optional<partition::HierarchicalResult> apply_decision(const schedule::PartitionFile& file,
                                                            const std::string& path,
                                                            const partition::HierarchicalProblem& problem,
                                                            core::Diagnostics& diagnostics);

}  // namespace api
