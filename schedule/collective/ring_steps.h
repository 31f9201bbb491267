// Rings over any members and pieces: the ring algorithm is one, the hierarchical one is made of several.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/collective/rounds.h"

namespace schedule {

struct RingMember {
    std::int32_t rank = 0;             // group rank
    std::vector<std::int32_t> pieces;  // that it owns after a reduce-scatter, before an all-gather; ascending
};

void append_ring_reduce_scatter(Rounds& rounds, const std::vector<RingMember>& members,
                                std::size_t first_round);
void append_ring_all_gather(Rounds& rounds, const std::vector<RingMember>& members, std::size_t first_round);
// One message of these pieces as transfers of consecutive pieces, as few as possible.
void append_pieces(Rounds& rounds, std::size_t round, std::int32_t from, std::int32_t to,
                   const std::vector<std::int32_t>& pieces, bool reduces);

}  // namespace schedule
