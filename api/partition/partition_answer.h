// What `smplan partition` answers: one document and one text for every kind of problem.
#pragma once

#include <string>
#include <vector>

#include "api/output.h"
#include "core/value.h"
#include "partition/hierarchical/hierarchical_placement.h"
#include "partition/placement.h"
#include "partition/replicated/replicated_placement.h"

namespace api {

struct PartitionAnswer {
    core::Value document;  // the contract's keys
    bool is_feasible = false, is_proven_infeasible = false;
    std::string reason;
    std::string text;
    std::vector<OutputFile> files;  // to be written when the answer is shown
    std::string saved;              // what the last of them is
};

// The unit of the file's times, in which they are told again.
enum class PlacementUnit { milliseconds, seconds };
PartitionAnswer answer_of(const partition::PlacementProblem& problem,
                          const partition::PlacementResult& result, bool is_contiguous, PlacementUnit unit);
PartitionAnswer answer_of(const partition::ReplicatedProblem& problem,
                          const partition::ReplicatedResult& result);
PartitionAnswer answer_of(const partition::HierarchicalProblem& problem,
                          const partition::HierarchicalResult& result);

}  // namespace api
