// Rings: each rank talks to its two neighbours only, and every link carries 1/n of the payload per round.
// All-reduce is a reduce-scatter and an all-gather of n
// - 1 rounds each, so each rank sends 2 (n - 1)/n of the payload, the least possible (Patarasuk and Yuan
// 2009; nccl-tests doc/PERFORMANCE.md).
#include "core/index/integers.h"
#include "schedule/collective/ring_steps.h"

namespace schedule {

void append_ring_reduce_scatter(Rounds& rounds, const std::vector<RingMember>& members,
                                std::size_t first_round) {
    const auto n = core::count_of(members);
    for (std::int32_t step = 0; step < n - 1; ++step)
        for (std::int32_t r = 0; r < n; ++r) {
            // Piece r goes round once, starting behind its owner: its sum is complete when it arrives at rank
            // r.
            const RingMember& owner = members[((r - 1 - step) % n + n) % n];
            append_pieces(rounds, first_round + step, members[r].rank, members[(r + 1) % n].rank,
                          owner.pieces, true);
        }
}

void append_ring_all_gather(Rounds& rounds, const std::vector<RingMember>& members, std::size_t first_round) {
    const auto n = core::count_of(members);
    for (std::int32_t step = 0; step < n - 1; ++step)
        for (std::int32_t r = 0; r < n; ++r) {
            const RingMember& owner = members[((r - step) % n + n) % n];
            append_pieces(rounds, first_round + step, members[r].rank, members[(r + 1) % n].rank,
                          owner.pieces, false);
        }
}

void append_pieces(Rounds& rounds, std::size_t round, std::int32_t from, std::int32_t to,
                   const std::vector<std::int32_t>& pieces, bool reduces) {
    if (rounds.rounds.size() <= round) rounds.rounds.resize(round + 1);
    std::vector<Transfer>& transfers = rounds.rounds[round];
    for (std::size_t i = 0; i < pieces.size(); ++i) {
        const bool continues = i > 0 && pieces[i] == pieces[i - 1] + 1;
        if (continues) ++transfers.back().count;
        else transfers.push_back({from, to, pieces[i], 1, reduces});
    }
}

namespace {

Rounds ring_rounds(CollectiveKind kind, int group_size, int) {
    Rounds result;
    result.pieces = group_size;
    std::vector<RingMember> members;
    for (std::int32_t r = 0; r < group_size; ++r) {
        members.push_back({r, {r}});
        result.owned_piece.push_back(r);
    }
    switch (kind) {
        case CollectiveKind::reduce_scatter: append_ring_reduce_scatter(result, members, 0); break;
        case CollectiveKind::all_gather: append_ring_all_gather(result, members, 0); break;
        case CollectiveKind::all_reduce:
            append_ring_reduce_scatter(result, members, 0);
            append_ring_all_gather(result, members, result.rounds.size());
            break;
        case CollectiveKind::broadcast:
            // A pipelined chain: piece k leaves rank r in round r + k.
            for (std::int32_t r = 0; r + 1 < group_size; ++r)
                for (std::int32_t piece = 0; piece < group_size; ++piece)
                    append_pieces(result, r + piece, r, r + 1, {piece}, false);
            break;
        case CollectiveKind::all_to_all:
            // In round t ranks r and t - r exchange, which reaches every pair once and never overwrites what
            // is still to be sent.
            for (std::int32_t t = 0; t < group_size; ++t) {
                result.rounds.emplace_back();
                for (std::int32_t r = 0; r < group_size; ++r) {
                    const std::int32_t partner = ((t - r) % group_size + group_size) % group_size;
                    if (partner != r) result.rounds.back().push_back({r, partner, partner, 1, false, r});
                }
                if (result.rounds.back().empty()) result.rounds.pop_back();
            }
            break;
        case CollectiveKind::rotate:
            result.pieces = 1;
            for (std::int32_t r = 0; group_size > 1 && r < group_size; ++r)
                append_pieces(result, 0, r, (r + 1) % group_size, {0}, false);
            break;
    }
    return result;
}

}  // namespace

CollectiveAlgorithm ring_algorithm() {
    return {"ring", [](CollectiveKind, int group_size, int) { return group_size >= 1; }, ring_rounds};
}

}  // namespace schedule
