#include "exec/transport/collective.h"

#include <algorithm>

#include "core/errors.h"
#include "core/index/integers.h"

namespace exec {

PieceRange piece_range(std::size_t elements, int pieces, std::int32_t first, std::int32_t count) {
    const std::size_t length = (elements + pieces - 1) / pieces;
    return {std::min(elements, first * length), std::min(elements, (first + count) * length)};
}

void perform(Communicator& communicator, const schedule::Rounds& rounds, const std::vector<int>& members,
             std::span<float> data, Tag tag) {
    const auto self = static_cast<std::int32_t>(
        std::find(members.begin(), members.end(), communicator.rank()) - members.begin());
    core::require(self < core::count_of(members), "a rank performs collectives of its own groups");
    std::vector<Communicator::Ticket> tickets;
    for (const std::vector<schedule::Transfer>& round : rounds.rounds) {
        tickets.clear();
        for (const schedule::Transfer& transfer : round) {
            if (transfer.from != self) continue;
            const PieceRange range = piece_range(data.size(), rounds.pieces, transfer.first, transfer.count);
            if (range.begin == range.end) continue;
            // A piece that is also written in this round is sent as it was before the round.
            const bool changes =
                std::any_of(round.begin(), round.end(), [&](const schedule::Transfer& other) {
                    return other.to == self && other.first < transfer.first + transfer.count &&
                           transfer.first < other.first + other.count;
                });
            std::span<const float> piece = data.subspan(range.begin, range.end - range.begin);
            std::shared_ptr<std::vector<float>> copy;
            if (changes) {
                copy = std::make_shared<std::vector<float>>(piece.begin(), piece.end());
                piece = *copy;
            }
            tickets.push_back(communicator.start_send(members[transfer.to], tag, piece, copy));
        }
        for (const schedule::Transfer& transfer : round) {
            if (transfer.to != self) continue;
            const PieceRange range = piece_range(data.size(), rounds.pieces, transfer.first, transfer.count);
            if (range.begin == range.end) continue;
            communicator.receive(members[transfer.from], tag,
                                 data.subspan(range.begin, range.end - range.begin),
                                 transfer.reduces ? Arrival::adds : Arrival::overwrites);
        }
        for (const Communicator::Ticket ticket : tickets) communicator.finish(ticket);
        ++tag;
    }
}

}  // namespace exec
