// Contiguous pipeline partition by dynamic programming: exact minimum of the largest stage load under a
// memory limit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "core/units.h"
#include "model/model_fwd.h"
#include "schedule/plan/plan.h"

namespace schedule {

// Load and memory of each unit, and of the boundary after each unit (size units - 1): all non-negative.
struct PartitionProblem {
    std::vector<core::Seconds> load;
    std::vector<core::Seconds>
        boundary;  // time of the transfer over the cut after unit i, charged to both sides
    std::vector<core::Seconds> again = {};  // of a stage, the first `most_again` units with any take it too
    std::vector<std::size_t> most_again = {};  // of each stage, or one number for all
    std::vector<core::Bytes> memory;           // may stay empty: no limit
    core::Bytes memory_limit{0};               // 0 = none
    int stages = 1;
};
struct PartitionSolution {
    Partition partition;
    core::Seconds largest_load;
};
// Exact, O(units^2 * stages); nothing when no partition respects the limit or there are fewer units than
// stages.
std::optional<PartitionSolution> partition_contiguous(const PartitionProblem& problem);

// The same for stages whose load depends on their place: `load(s, i, j)` of units [i, j) as stage s, infinity
// where that cannot be. O(units^2 * stages) loads.
using StageLoad = std::function<double(std::size_t stage, std::size_t begin, std::size_t end)>;
std::optional<Partition> partition_by_place(std::size_t units, std::size_t stages, const StageLoad& load);

// Cost of each unit that the partition of a plan without one balances: FLOPs of forward and backward, as SMP
// weighs them with memory where memory_weight asks for it. Of a plan with recompute_layers without what runs
// again, which depends on where stages begin (and is left out beside memory_weight: SMP knows no such
// layers).
std::vector<core::Seconds> partition_loads(const Plan& plan, const model::ModelGraph& graph);
// FLOPs of forward of the units that can run again under the plan's recomputation.
std::vector<core::Seconds> recomputed_loads(const Plan& plan, const model::ModelGraph& graph);
// Of a plan with recompute_layers: PartitionProblem::most_again.
std::vector<std::size_t> most_again(const Plan& plan);
// The plan's own partition, or when it is empty the exact one that balances FLOPs of forward and backward
// over the virtual stages.
std::optional<Partition> complete_partition(const Plan& plan, const model::ModelGraph& graph);

// As frameworks place stages that count layers, not FLOPs: equal numbers of layers, the embedding with the
// first stage and the head with the last; where layers + 2 divide evenly, the first and last stage hold one
// layer less (embedding and head count as one each). Nothing when neither divides.
std::optional<Partition> partition_by_layers(const model::ModelGraph& graph, int stages);

}  // namespace schedule
