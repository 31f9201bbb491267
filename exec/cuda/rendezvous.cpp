#include "exec/cuda/rendezvous.h"

#include <map>
#include <set>
#include <tuple>

#include <fmt/core.h>

namespace exec::cuda {

using schedule::Instruction;
using schedule::InstructionKind;

namespace {

bool is_message(const Instruction& i) { return i.kind == InstructionKind::send || i.kind == InstructionKind::receive; }

// As backend_exchange.cpp names channels: the boundary between stages that a message crosses.
std::int32_t boundary_of(const Instruction& i) {
    return i.stage + ((i.kind == InstructionKind::send) == (i.payload == schedule::PayloadKind::activation) ? 1 : 0);
}

// One rank on its way through its list.
struct Walker {
    const schedule::RankProgram* list = nullptr;
    std::vector<std::vector<std::uint32_t>> lanes;
    std::vector<std::size_t> next;
    std::vector<char> is_done, has_begun;
    std::vector<const void*> meeting;  // by instruction that has begun and waits for others
    std::map<std::vector<int>, int> collectives;
    std::map<std::tuple<bool, int, schedule::PayloadKind, std::int32_t>, int> messages;
};

// Who has come, of those who meet: the ranks of a channel or group, the channel, and which of its messages or collectives it is.
using Meeting = std::tuple<std::vector<int>, int, std::int32_t, int>;

class Walk {
public:
    Walk(const schedule::Program& program, bool has_channels) : program_(program), has_channels_(has_channels) {
        for (int r = 0; r < program.plan.layout.ranks(); ++r) {
            Walker& walker = walkers_.emplace_back();
            walker.list = &program.classes[static_cast<std::size_t>(program.class_of_rank[static_cast<std::size_t>(r)])];
            const Lanes lanes = lanes_of(*walker.list, has_channels);
            walker.lanes.resize(static_cast<std::size_t>(lanes.count));
            walker.next.resize(walker.lanes.size());
            for (std::uint32_t i = 0; i < walker.list->instructions.size(); ++i) walker.lanes[static_cast<std::size_t>(lanes.of[i])].push_back(i);
            walker.is_done.resize(walker.list->instructions.size());
            walker.has_begun.resize(walker.list->instructions.size());
            walker.meeting.resize(walker.list->instructions.size());
        }
    }

    std::string stuck() {
        for (bool moves = true; moves;) {
            moves = false;
            for (std::size_t r = 0; r < walkers_.size(); ++r)
                for (std::size_t lane = 0; lane < walkers_[r].lanes.size(); ++lane)
                    while (advance(static_cast<int>(r), lane, moves)) moves = true;
        }
        for (std::size_t r = 0; r < walkers_.size(); ++r)
            for (std::uint32_t i = 0; i < walkers_[r].is_done.size(); ++i)
                if (!walkers_[r].is_done[i])
                    return fmt::format("rank {}: {}", r, schedule::describe(program_, program_.class_of_rank[r], i));
        return {};
    }

private:
    // True when the first instruction left in the lane has ended.
    bool advance(int rank, std::size_t lane, bool& begins) {
        Walker& walker = walkers_[static_cast<std::size_t>(rank)];
        if (walker.next[lane] >= walker.lanes[lane].size()) return false;
        const std::uint32_t index = walker.lanes[lane][walker.next[lane]];
        const Instruction& own = walker.list->instructions[index];
        for (const std::uint32_t other : walker.list->after(own))
            if (!walker.is_done[other] && !(has_channels_ && walker.list->instructions[other].kind == InstructionKind::send)) return false;
        if (is_message(own) || own.kind == InstructionKind::collective) {
            if (!walker.has_begun[index]) {
                walker.meeting[index] = &arrive(rank, own);
                begins = true;
            }
            walker.has_begun[index] = 1;
            const auto& [wanted, came] = *static_cast<const std::pair<std::size_t, std::set<int>>*>(walker.meeting[index]);
            if (came.size() < wanted) return false;
        }
        walker.has_begun[index] = walker.is_done[index] = 1;
        ++walker.next[lane];
        return true;
    }

    const std::pair<std::size_t, std::set<int>>& arrive(int rank, const Instruction& own) {
        Walker& walker = walkers_[static_cast<std::size_t>(rank)];
        Meeting meeting;
        auto& [members, channel, boundary, number] = meeting;
        if (is_message(own)) {
            const schedule::RankCoordinates place = schedule::coordinates_of(program_.plan.layout, rank);
            const int peer = schedule::rank_of(program_.plan.layout, {place.data, place.tensor, own.peer});
            const bool sends = own.kind == InstructionKind::send;
            members = sends ? std::vector<int>{rank, peer} : std::vector<int>{peer, rank};
            channel = 1 + static_cast<int>(own.payload);
            boundary = has_channels_ ? boundary_of(own) : -1;
            number = walker.messages[{sends, peer, own.payload, boundary}]++;
        } else {
            members = schedule::members_of(program_, rank, own);
            number = walker.collectives[members]++;
        }
        auto& [wanted, came] = meetings_[meeting];
        wanted = members.size();
        came.insert(rank);
        return meetings_.at(meeting);
    }

    const schedule::Program& program_;
    const bool has_channels_;
    std::vector<Walker> walkers_;
    std::map<Meeting, std::pair<std::size_t, std::set<int>>> meetings_;
};

}  // namespace

Lanes lanes_of(const schedule::RankProgram& list, bool has_channels) {
    Lanes lanes;
    for (int s = 0; s < schedule::stream_count; ++s) lanes.stream_of.push_back(static_cast<schedule::Stream>(s));
    std::map<std::tuple<InstructionKind, std::int32_t, schedule::PayloadKind, std::int32_t>, int> channels;
    for (const Instruction& instruction : list.instructions) {
        int lane = static_cast<int>(instruction.stream);
        if (has_channels && is_message(instruction)) {
            const auto [found, is_new] = channels.insert({{instruction.kind, instruction.peer, instruction.payload, boundary_of(instruction)}, lanes.count});
            lane = found->second;
            if (is_new) {
                ++lanes.count;
                lanes.stream_of.push_back(instruction.stream);
            }
        }
        lanes.of.push_back(lane);
    }
    return lanes;
}

std::string stuck_without_buffers(const schedule::Program& program, bool has_channels) { return Walk(program, has_channels).stuck(); }

}  // namespace exec::cuda
