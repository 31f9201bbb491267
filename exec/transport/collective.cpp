#include "exec/transport/collective.h"

#include <algorithm>

#include "core/errors.h"

namespace exec {

PieceRange piece_range(std::size_t elements, int pieces, std::int32_t first, std::int32_t count) {
    const std::size_t length =
        (elements + static_cast<std::size_t>(pieces) - 1) / static_cast<std::size_t>(pieces);
    return {std::min(elements, static_cast<std::size_t>(first) * length),
            std::min(elements, static_cast<std::size_t>(first + count) * length)};
}

void perform(Communicator& communicator, const schedule::Rounds& rounds, const std::vector<int>& members,
             std::span<float> data, Tag tag) {
    const auto self = static_cast<std::int32_t>(
        std::find(members.begin(), members.end(), communicator.rank()) - members.begin());
    core::require(self < static_cast<std::int32_t>(members.size()),
                  "a rank performs collectives of its own groups");
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
            tickets.push_back(
                communicator.start_send(members[static_cast<std::size_t>(transfer.to)], tag, piece, copy));
        }
        for (const schedule::Transfer& transfer : round) {
            if (transfer.to != self) continue;
            const PieceRange range = piece_range(data.size(), rounds.pieces, transfer.first, transfer.count);
            if (range.begin == range.end) continue;
            communicator.receive(members[static_cast<std::size_t>(transfer.from)], tag,
                                 data.subspan(range.begin, range.end - range.begin),
                                 transfer.reduces ? Arrival::adds : Arrival::overwrites);
        }
        for (const Communicator::Ticket ticket : tickets) communicator.finish(ticket);
        ++tag;
    }
}

}  // namespace exec
