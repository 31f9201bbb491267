// A collective performed as the rounds of transfers that the simulator prices.
#pragma once

#include <span>
#include <vector>

#include "exec/transport/communicator.h"
#include "schedule/collective/rounds.h"

namespace exec {

// Elements [begin, end) of piece `piece` of `elements` in `pieces` equal parts, the last one short.
struct PieceRange {
    std::size_t begin = 0, end = 0;
};
PieceRange piece_range(std::size_t elements, int pieces, std::int32_t first, std::int32_t count);

// `members` are global ranks in group order. In place: all_gather expects this member's piece at its offset
// in `data`, reduce_scatter leaves the sum there. Sums are taken in the order of the rounds: the same bits
// every time. `tag` must be the same on all members and used for nothing else at that moment; tags tag ...
// tag + rounds - 1 are used.
void perform(Communicator& communicator, const schedule::Rounds& rounds, const std::vector<int>& members,
             std::span<float> data, Tag tag);

}  // namespace exec
