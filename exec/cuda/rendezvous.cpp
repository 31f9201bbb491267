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

// Those who have come, of those who meet.
struct Meeting {
    std::size_t wanted = 0;
    std::set<int> came;
};

// Of whom, where and when: the ranks of a channel or group, the channel, and which of its messages or collectives it is in the order of the list, by which NCCL matches.
using MeetingKey = std::tuple<std::vector<int>, int, std::int32_t, int>;

// One rank on its way through its list.
struct Walker {
    const schedule::RankProgram* list = nullptr;
    std::vector<std::vector<std::uint32_t>> lanes;
    std::vector<std::size_t> next;
    std::vector<char> is_done;
    std::vector<Meeting*> meeting;  // by instruction; null where nobody is met
};

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
            arrange_meetings(r, walker);
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
    void arrange_meetings(int rank, Walker& walker) {
        std::map<MeetingKey, int> before;  // by key without its number
        const schedule::RankCoordinates place = schedule::coordinates_of(program_.plan.layout, rank);
        for (const Instruction& own : walker.list->instructions) {
            MeetingKey key;
            auto& [members, channel, boundary, number] = key;
            if (is_message(own)) {
                const int peer = schedule::rank_of(program_.plan.layout, {place.data, place.tensor, own.peer});
                members = own.kind == InstructionKind::send ? std::vector<int>{rank, peer} : std::vector<int>{peer, rank};
                channel = 1 + static_cast<int>(own.payload);
                boundary = has_channels_ ? boundary_of(own) : -1;
            } else if (own.kind == InstructionKind::collective) {
                members = schedule::members_of(program_, rank, own);
            } else {
                walker.meeting.push_back(nullptr);
                continue;
            }
            number = before[key]++;
            Meeting& meeting = meetings_[key];
            meeting.wanted = members.size();
            walker.meeting.push_back(&meeting);
        }
    }

    // True when the first instruction left in the lane has ended.
    bool advance(int rank, std::size_t lane, bool& begins) {
        Walker& walker = walkers_[static_cast<std::size_t>(rank)];
        if (walker.next[lane] >= walker.lanes[lane].size()) return false;
        const std::uint32_t index = walker.lanes[lane][walker.next[lane]];
        for (const std::uint32_t other : walker.list->after(walker.list->instructions[index]))
            if (!walker.is_done[other] && !(has_channels_ && walker.list->instructions[other].kind == InstructionKind::send)) return false;
        if (Meeting* const meeting = walker.meeting[index]) {
            begins |= meeting->came.insert(rank).second;
            if (meeting->came.size() < meeting->wanted) return false;
        }
        walker.is_done[index] = 1;
        ++walker.next[lane];
        return true;
    }

    const schedule::Program& program_;
    const bool has_channels_;
    std::vector<Walker> walkers_;
    std::map<MeetingKey, Meeting> meetings_;
};

}  // namespace

std::int32_t boundary_of(const Instruction& message) {
    return message.stage + ((message.kind == InstructionKind::send) == (message.payload == schedule::PayloadKind::activation) ? 1 : 0);
}

Lanes lanes_of(const schedule::RankProgram& list, bool has_channels) {
    Lanes lanes;
    std::map<std::tuple<InstructionKind, std::int32_t, schedule::PayloadKind, std::int32_t>, int> channels;
    for (const Instruction& instruction : list.instructions) {
        int lane = static_cast<int>(instruction.stream);
        if (has_channels && is_message(instruction)) {
            const auto [found, is_new] = channels.insert({{instruction.kind, instruction.peer, instruction.payload, boundary_of(instruction)}, lanes.count});
            lane = found->second;
            lanes.count += is_new;
        }
        lanes.of.push_back(lane);
    }
    return lanes;
}

std::string stuck_without_buffers(const schedule::Program& program, bool has_channels) { return Walk(program, has_channels).stuck(); }

}  // namespace exec::cuda
