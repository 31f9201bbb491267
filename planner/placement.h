// A costed graph to be placed on devices, and the answer: the neutral form behind every graph-partitioning format.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/units.h"

namespace planner {

// What is placed as one piece: the nodes of a colocation group (forward and backward halves together) or of a cycle of such groups.
struct PlacementItem {
    std::vector<std::int64_t> nodes;  // ids of the file
    core::Seconds accelerator_time, cpu_time;
    core::Bytes memory;
    bool runs_on_accelerator = true;
};

// One output moved between devices: `time` is charged once to the device of `source` when any destination lies elsewhere, and once to every
// other device that holds a destination (Tarnawski et al., NeurIPS 2020, as their published code has it).
struct Transfer {
    int source = 0;
    std::vector<int> destinations;  // ascending, without `source`
    core::Seconds time;
};

struct PlacementProblem {
    std::vector<PlacementItem> items;                // in a topological order of `precedence`
    std::vector<std::pair<int, int>> precedence;     // (before, after), before < after
    std::vector<Transfer> transfers;
    int accelerators = 1;
    int cpus = 0;                                    // a CPU pays cpu_time, no transfer, and has no memory limit
    core::Bytes memory_limit{std::numeric_limits<double>::infinity()};
};

struct PlacedStage {
    bool is_cpu = false;
    std::vector<int> items;  // ascending
    core::Seconds load;
    core::Bytes memory;
};

struct PlacementResult {
    bool is_feasible = false;
    std::vector<PlacedStage> stages;     // in pipeline order; empty devices are left out
    core::Seconds objective;             // the largest load
    core::Seconds lower_bound;
    bool is_proven_optimal = false;      // among contiguous placements, or among all of them, as the search says
    bool is_proven_infeasible = false;
    std::string reason;                  // why there is no placement
    std::int64_t expanded = 0;           // sets of items looked at
};

struct PlacementOptions {
    core::Seconds time_limit{std::numeric_limits<double>::infinity()};
};

// Load and memory of one device that holds `items`.
PlacedStage stage_of(const PlacementProblem& problem, std::vector<int> items, bool is_cpu);
// The largest load of a complete placement by the definition above: the checker that every search result passes, and expert splits are judged by.
core::Seconds largest_load(const PlacementProblem& problem, const std::vector<PlacedStage>& stages);

// A bound no placement can beat, contiguous or not: total work over all devices, and the largest single item.
core::Seconds placement_lower_bound(const PlacementProblem& problem);
// Empty, or why no placement can respect the limits, with numbers (one item too large, everything together too large, no CPU for what only runs there).
std::string placement_obstacle(const PlacementProblem& problem);

// Exact: every stage is the difference of two downsets of `precedence`. Anytime: at the time limit the best so far with a valid lower bound.
PlacementResult place_contiguous(const PlacementProblem& problem, const PlacementOptions& options = {});
// Any assignment of items to devices: seeded local search from the best contiguous placement; the lower bound is placement_lower_bound.
PlacementResult place_anywhere(const PlacementProblem& problem, const PlacementOptions& options = {});

}  // namespace planner
