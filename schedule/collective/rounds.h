// Collectives as data: an algorithm is rounds of transfers between group ranks. The simulator prices the
// rounds, the CPU backend performs them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/optional_index.h"
#include "schedule/program/program.h"

namespace schedule {

// The payload is divided into `pieces` equal parts (the last may be short). A transfer moves pieces [first,
// first + count) from one group rank to another in one round; the receiver adds them to its own (reduce) or
// overwrites its own (copy). All transfers of a round happen at once and read the state before the round.
struct Transfer {
    std::int32_t from = 0, to = 0;
    std::int32_t first = 0, count = 1;
    bool reduces = false;
    core::OptionalIndex into{};  // first piece at the receiver, if it is not `first` (all-to-all)
};
// State before and after, with the payload's pieces as positions: all_reduce: everyone has a vector, then the
// sum. reduce_scatter: then the sum of its own piece. all_gather: everyone has its own piece, then all.
// broadcast: group rank 0 has the payload, then everyone. all_to_all: position j holds the part for rank j,
// then position j holds the part from rank j. rotate: everyone has a payload, then that of the rank before.
struct Rounds {
    int pieces = 1;
    std::vector<std::vector<Transfer>> rounds;
    // Group rank r owns piece `owned_piece[r]` after reduce_scatter (and before all_gather).
    std::vector<std::int32_t> owned_piece;
};

struct CollectiveAlgorithm {
    std::string name;  // "ring", "tree", "hierarchical", "hierarchical-intra-first"
    bool (*supports)(CollectiveKind kind, int group_size, int ranks_per_node) = nullptr;
    Rounds (*rounds)(CollectiveKind kind, int group_size, int ranks_per_node) = nullptr;
};
const std::vector<CollectiveAlgorithm>& collective_algorithms();
CollectiveAlgorithm ring_algorithm();
CollectiveAlgorithm tree_algorithm();
CollectiveAlgorithm hierarchical_algorithm();
CollectiveAlgorithm hierarchical_intra_first_algorithm();
const CollectiveAlgorithm* find_collective_algorithm(const std::string& name);

// The selector: the named algorithm where it supports the kind and group, or for "auto" ring for
// bandwidth-bound sizes, tree for small all-reduces, hierarchical across nodes; ring where nothing else fits.
// `ranks_per_node`: consecutive group ranks on each node, 0 when they are not evenly spread.
const CollectiveAlgorithm& select_collective(const std::string& wanted, CollectiveKind kind, int group_size,
                                             int ranks_per_node, core::Bytes bytes);

}  // namespace schedule
