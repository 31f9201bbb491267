// Every assignment of items to devices, with bounds: exact where items are few.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "partition/deadline.h"
#include "partition/placement.h"

namespace partition {

struct FreeSearchResult {
    bool is_complete = false;  // every assignment was looked at or excluded by a bound
    // Of each item, devices numbered class by class; nothing where no assignment lies below `below`.
    std::optional<std::vector<std::size_t>> device_of;
    double value = 0;  // its largest load, seconds
    std::int64_t expanded = 0;
};

// The best assignment whose largest load lies below `below`, each device keeping the activations of all
// micro-batches of a step. Ends incomplete after `most_expanded` partial assignments, or at the deadline.
FreeSearchResult search_free(const PlacementProblem& problem, double below, std::int64_t most_expanded,
                             const Deadline& deadline);

}  // namespace partition
