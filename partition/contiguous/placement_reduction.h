// Fewer items, same optimum: work-free items that can always lie beside a neighbour without raising any load.
#pragma once

#include <cstddef>
#include <vector>

#include "partition/placement.h"

namespace partition {

struct ReducedPlacement {
    PlacementProblem problem;
    std::vector<std::vector<std::size_t>> members;  // of each reduced item, items of the original
    std::vector<std::size_t> own;  // of each reduced item, the member that the others were merged into
    core::Bytes moved_memory;  // of the items that were merged: with zero the reduction is exact whatever the
                               // memory limit
};

// Three rules, applied until none holds, each to an item v without work that accelerators can run:
//   * its one successor is u, it receives nothing but from u, and sends to nobody but u: v moves to u (later,
//   where its output is wanted);
//   * its one predecessor is u, it sends nothing but to u, and receives from nobody but u: v moves to u
//   (earlier);
//   * it has no predecessor, sends and receives nothing: v moves to any one successor that comes first.
// Moving v to u's stage keeps every stage a difference of downsets and lowers or keeps every load; only
// memory moves with it. Zero-cost items otherwise double the number of downsets each. The third rule drops
// v's other precedences: where it lies does not matter then, and a downset argument puts it into the first
// stage. Items of which `stays` is true remain by themselves (empty: none).
ReducedPlacement reduce(const PlacementProblem& problem, const std::vector<char>& stays = {});

}  // namespace partition
