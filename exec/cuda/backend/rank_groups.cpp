#include "exec/cuda/backend/rank_groups.h"

#include <algorithm>
#include <numeric>
#include <set>

#include <fmt/core.h>

#include "core/errors.h"
#include "exec/cuda/rendezvous.h"

namespace exec::cuda {

using schedule::Instruction;
using schedule::InstructionKind;

struct RankGroups::Found {
    using Message = std::pair<std::int32_t, std::int32_t>;  // boundary, micro-batch
    std::set<std::vector<int>> groups;
    std::map<Channel, std::vector<Message>> sent, received;
};

RankGroups::Found RankGroups::find(const schedule::Program& program) const {
    const schedule::ParallelLayout& layout = program.plan.layout;
    Found found;
    for (int rank = 0; rank < layout.ranks(); ++rank) {
        const schedule::RankProgram& list = program.classes[program.class_of_rank[rank]];
        const schedule::RankCoordinates coordinates = schedule::coordinates_of(layout, rank);
        std::set<std::pair<schedule::GroupKind, std::optional<std::int32_t>>> seen;
        for (const Instruction& instruction : list.instructions) {
            if (instruction.kind == InstructionKind::collective) {
                // Members depend on the bucket in tied stages only.
                std::optional<std::int32_t> bucket;
                if (instruction.group == schedule::GroupKind::tied_stages && instruction.bucket)
                    bucket = *instruction.bucket;
                if (!seen.insert({instruction.group, bucket}).second) continue;
                std::vector<int> members = schedule::members_of(program, rank, instruction);
                if (members.size() > 1) found.groups.insert(std::move(members));
            } else if (instruction.kind == InstructionKind::send ||
                       instruction.kind == InstructionKind::receive) {
                const bool sends = instruction.kind == InstructionKind::send;
                const int peer =
                    schedule::rank_of(layout, {coordinates.data, coordinates.tensor, *instruction.peer});
                auto& messages = sends ? found.sent : found.received;
                messages[{sends ? rank : peer, sends ? peer : rank, instruction.payload, {}}].push_back(
                    {boundary_of(instruction), instruction.micro_batch});
            }
        }
    }
    return found;
}

// All groups that any rank's collectives and messages need; every rank makes its own in the same order, so
// that no two wait for one another.
RankGroups::RankGroups(const schedule::Program& program, int rank, Exchange& exchange, bool has_channels,
                       bool joins_all)
    : rank_(rank), is_boundary_apart_(has_channels) {
    const int ranks = program.plan.layout.ranks();
    if (ranks < 2) return;
    Found found = find(program);
    // NCCL matches messages by their order. Where sender and receiver list them in different orders, every
    // boundary between stages gets a channel of its own.
    for (const auto& [channel, messages] : found.sent)
        if (messages != found.received[channel]) is_boundary_apart_ = true;
    std::set<Channel> channels;
    for (const auto& [channel, messages] : found.sent) {
        std::map<std::int32_t, std::vector<std::int32_t>> out, in;
        for (const auto& [boundary, micro_batch] : messages) out[boundary].push_back(micro_batch);
        for (const auto& [boundary, micro_batch] : found.received[channel])
            in[boundary].push_back(micro_batch);
        if (out != in)
            throw core::MachineError(
                fmt::format("rank {} sends micro-batches to rank {} in another order than that rank receives "
                            "them in: NCCL cannot match them",
                            channel.from, channel.to));
        for (const auto& [boundary, ignored] : out)
            channels.insert({channel.from, channel.to, channel.payload,
                             is_boundary_apart_ ? std::optional(boundary) : std::nullopt});
    }
    if (joins_all) {
        all_.resize(ranks);
        std::iota(all_.begin(), all_.end(), 0);
        found.groups.insert(all_);
    }
    for (const std::vector<int>& members : found.groups)
        if (std::find(members.begin(), members.end(), rank) != members.end())
            groups_[members] = exchange.make_group(members);
    for (const Channel& channel : channels)
        if (channel.from == rank || channel.to == rank)
            channels_[channel] = exchange.make_group({channel.from, channel.to});
}

int RankGroups::of(const std::vector<int>& members) const {
    const auto found = groups_.find(members);
    core::require(found != groups_.end(), "every group was made before the first step");
    return found->second;
}

int RankGroups::channel(const Instruction& message, int peer, bool sends) const {
    const auto found =
        channels_.find({sends ? rank_ : peer, sends ? peer : rank_, message.payload,
                        is_boundary_apart_ ? std::optional(boundary_of(message)) : std::nullopt});
    core::require(found != channels_.end(), "every channel was made before the first step");
    return found->second;
}

}  // namespace exec::cuda
