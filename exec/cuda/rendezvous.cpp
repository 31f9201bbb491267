#include "exec/cuda/rendezvous.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include <fmt/core.h>

#include "core/errors.h"
#include "core/index/integers.h"

namespace exec::cuda {

using schedule::Instruction;
using schedule::InstructionKind;

namespace {

bool is_message(const Instruction& i) {
    return i.kind == InstructionKind::send || i.kind == InstructionKind::receive;
}

// The ranks that have arrived at a rendezvous, of those that it needs.
struct Rendezvous {
    std::size_t wanted = 0;
    std::set<int> came;
};

// A rendezvous is told apart by the ranks of its channel or group, the channel, the boundary, and its number
// among the messages or collectives of that channel in the order of the list, by which NCCL matches.
using RendezvousKey = std::tuple<std::vector<int>, int, std::optional<std::int32_t>, int>;

// One rank on its way through its list.
struct Walker {
    const schedule::RankProgram* list = nullptr;
    std::vector<std::vector<std::uint32_t>> lanes;
    std::vector<std::size_t> next;
    std::vector<char> is_done;
    std::vector<Rendezvous*> rendezvous;  // by instruction; null where the instruction involves no other rank
    const RankWaits* waits = nullptr;
    std::size_t host = 0;             // of its waits the first that is not over
    std::optional<std::size_t> busy;  // lane that alone is at work, where lanes do not run at once
};

class Walk {
public:
    Walk(const schedule::Program& program, bool has_channels, const std::vector<RankWaits>& waits,
         Branches branches)
        : program_(program), has_channels_(has_channels), branches_(branches) {
        for (int r = 0; r < program.plan.layout.ranks(); ++r) {
            Walker& walker = walkers_.emplace_back();
            walker.list = &program.classes[program.class_of_rank[r]];
            const Lanes lanes = lanes_of(*walker.list, has_channels);
            walker.lanes.resize(lanes.count);
            walker.next.resize(walker.lanes.size());
            for (std::uint32_t i = 0; i < walker.list->instructions.size(); ++i)
                walker.lanes[lanes.of[i]].push_back(i);
            walker.is_done.resize(walker.list->instructions.size());
            if (!waits.empty()) walker.waits = &waits[r];
            arrange_rendezvous(r, walker);
        }
    }

    std::optional<std::string> stuck() {
        for (bool moves = true; moves;) {
            moves = false;
            for (const std::int32_t r : core::indices(walkers_))
                for (std::size_t i = 0, lanes = walkers_[r].lanes.size(); i < lanes; ++i) {
                    const std::size_t lane = branches_ == Branches::last_alone ? lanes - 1 - i : i;
                    while (advance(r, lane, moves)) moves = true;
                }
        }
        for (std::size_t r = 0; r < walkers_.size(); ++r)
            for (std::uint32_t i = 0; i < walkers_[r].is_done.size(); ++i)
                if (!walkers_[r].is_done[i])
                    return fmt::format("rank {}: {}", r,
                                       schedule::describe(program_, program_.class_of_rank[r], i));
        return std::nullopt;
    }

private:
    void arrange_rendezvous(int rank, Walker& walker) {
        std::map<RendezvousKey, int> before;  // by key without its number
        const schedule::RankCoordinates coordinates = schedule::coordinates_of(program_.plan.layout, rank);
        for (const Instruction& own : walker.list->instructions) {
            RendezvousKey key;
            auto& [members, channel, boundary, number] = key;
            if (is_message(own)) {
                const int peer = schedule::rank_of(program_.plan.layout,
                                                   {coordinates.data, coordinates.tensor, *own.peer});
                members = own.kind == InstructionKind::send ? std::vector<int>{rank, peer}
                                                            : std::vector<int>{peer, rank};
                channel = 1 + static_cast<int>(own.payload);
                if (has_channels_) boundary = boundary_of(own);
            } else if (own.kind == InstructionKind::collective) {
                members = schedule::members_of(program_, rank, own);
            } else {
                walker.rendezvous.push_back(nullptr);
                continue;
            }
            number = before[key]++;
            Rendezvous& rendezvous = rendezvous_[key];
            rendezvous.wanted = members.size();
            walker.rendezvous.push_back(&rendezvous);
        }
    }

    // True when the first instruction left in the lane has ended.
    bool advance(int rank, std::size_t lane, bool& begins) {
        Walker& walker = walkers_[rank];
        if (walker.next[lane] >= walker.lanes[lane].size()) return false;
        if (walker.busy && *walker.busy != lane) return false;
        const std::uint32_t index = walker.lanes[lane][walker.next[lane]];
        for (const std::uint32_t other : walker.list->after(walker.list->instructions[index]))
            if (!walker.is_done[other] &&
                !(has_channels_ && walker.list->instructions[other].kind == InstructionKind::send))
                return false;
        if (walker.waits) {
            while (walker.host < walker.waits->host.size() && walker.is_done[walker.waits->host[walker.host]])
                ++walker.host;
            if (walker.host < walker.waits->host.size() && walker.waits->host[walker.host] < index)
                return false;  // the host has not launched it yet
            if (!walker.waits->of.empty())
                for (const std::uint32_t other : walker.waits->of[index])
                    if (!walker.is_done[other]) return false;
        }
        if (Rendezvous* const rendezvous = walker.rendezvous[index]) {
            begins |= rendezvous->came.insert(rank).second;
            if (rendezvous->came.size() < rendezvous->wanted) {
                if (branches_ != Branches::at_once) walker.busy = lane;
                return false;
            }
        }
        walker.busy.reset();
        walker.is_done[index] = 1;
        ++walker.next[lane];
        return true;
    }

    const schedule::Program& program_;
    const bool has_channels_;
    const Branches branches_;
    std::vector<Walker> walkers_;
    std::map<RendezvousKey, Rendezvous> rendezvous_;
};

// One rank of each class in a given order, with what it knows of the messages that were taken.
class OrderedWalk {
public:
    enum class Sends { in_the_list, beside_the_list, in_channels };

    OrderedWalk(const schedule::Program& program, Sends sends)
        : program_(program), sends_(sends), ranks_(program.classes.size()) {
        for (std::size_t c = 0; c < ranks_.size(); ++c) arrange(c);
        for (Rank& rank : ranks_) {
            rank.known.assign(lanes_.size(), 0);
            rank.taken.assign(rank.list->instructions.size(),
                              static_cast<std::uint32_t>(rank.list->instructions.size()));
        }
    }

    // When every message was taken (MessagePlan::taken), or nothing: the order deadlocks.
    std::optional<std::vector<std::vector<std::uint32_t>>> walk() {
        for (bool moves = true; moves;) {
            moves = false;
            for (std::size_t c = 0; c < ranks_.size(); ++c)
                while (advance(c)) moves = true;
        }
        std::vector<std::vector<std::uint32_t>> taken;
        for (Rank& rank : ranks_) {
            if (rank.next < rank.list->instructions.size()) return {};
            taken.push_back(std::move(rank.taken));
        }
        for (const Lane& lane : lanes_)
            if (lane.done < lane.sends.size()) return {};
        return taken;
    }

private:
    using TakenCounts = std::vector<std::uint32_t>;  // by lane of sends: how many were taken
    struct Message {
        std::size_t lane = 0, index = 0;  // of its send
        bool is_posted = false, is_taken = false;
        TakenCounts known;  // to its sender when it was posted
    };
    struct Lane {
        std::size_t rank = 0;
        std::vector<std::uint32_t> sends;  // instructions
        std::size_t done = 0;
    };
    struct Gathering {
        std::size_t wanted = 0;
        std::map<std::size_t, TakenCounts> came;
        TakenCounts known;  // to all of them
    };
    struct Rank {
        const schedule::RankProgram* list = nullptr;
        std::size_t next = 0;
        std::vector<Message*> messages;      // by instruction
        std::vector<Gathering*> gatherings;  // by instruction
        TakenCounts known;
        std::vector<std::uint32_t> taken;
    };
    using MessageKey = std::tuple<std::size_t, std::size_t, schedule::PayloadKind, std::int32_t,
                                  int>;  // from, to, what, boundary, number

    void arrange(std::size_t c) {
        Rank& rank = ranks_[c];
        rank.list = &program_.classes[c];
        const schedule::ParallelLayout& layout = program_.plan.layout;
        const int self = schedule::rank_of(layout, {0, 0, rank.list->pipeline});
        std::map<MessageKey, int> before;
        std::map<std::vector<int>, int> collectives;
        std::map<std::tuple<std::int32_t, schedule::PayloadKind, std::int32_t>, std::size_t> lane_of;
        for (std::uint32_t i = 0; i < rank.list->instructions.size(); ++i) {
            const Instruction& own = rank.list->instructions[i];
            rank.messages.push_back(nullptr);
            rank.gatherings.push_back(nullptr);
            if (is_message(own)) {
                const bool sends = own.kind == InstructionKind::send;
                const std::size_t peer = program_.class_of_rank[schedule::rank_of(layout, {0, 0, *own.peer})];
                MessageKey key{sends ? c : peer, sends ? peer : c, own.payload, boundary_of(own), 0};
                std::get<4>(key) = before[key]++;
                Message& message = messages_[key];
                rank.messages.back() = &message;
                if (!sends) continue;
                const auto channel = sends_ == Sends::in_channels
                                         ? std::tuple(*own.peer, own.payload, boundary_of(own))
                                         : std::tuple(-1, schedule::PayloadKind::none, -1);
                const auto [found, is_new] = lane_of.insert({channel, lanes_.size()});
                if (is_new) lanes_.emplace_back().rank = c;
                message.lane = found->second;
                message.index = lanes_[message.lane].sends.size();
                lanes_[message.lane].sends.push_back(i);
            } else if (own.kind == InstructionKind::collective) {
                std::vector<int> members;  // of this pipeline
                for (const int member : schedule::members_of(program_, self, own)) {
                    const schedule::RankCoordinates coordinates = schedule::coordinates_of(layout, member);
                    if (coordinates.data == 0 && coordinates.tensor == 0) members.push_back(member);
                }
                if (members.size() < 2) continue;
                Gathering& gathering = gatherings_[{members, collectives[members]++}];
                gathering.wanted = members.size();
                rank.gatherings.back() = &gathering;
            }
        }
    }

    static void join(TakenCounts& known, const TakenCounts& more) {
        for (std::size_t i = 0; i < known.size(); ++i) known[i] = std::max(known[i], more[i]);
    }

    // What instruction `index` of the rank has told it is known from the next one on.
    void learn(Rank& rank, std::size_t c, const TakenCounts& more, std::size_t index) {
        for (std::size_t l = 0; l < lanes_.size(); ++l) {
            if (lanes_[l].rank == c)
                for (std::size_t sent = rank.known[l]; sent < more[l]; ++sent)
                    rank.taken[lanes_[l].sends[sent]] = static_cast<std::uint32_t>(index + 1);
            rank.known[l] = std::max(rank.known[l], more[l]);
        }
    }

    bool take(Message& message, Rank& receiver, std::size_t c, std::size_t index) {
        Lane& lane = lanes_[message.lane];
        if (!message.is_posted || lane.done != message.index) return false;
        message.is_taken = true;
        ++lane.done;
        message.known[message.lane] = static_cast<std::uint32_t>(lane.done);
        learn(receiver, c, message.known, index);
        return true;
    }

    // True when the rank has got further.
    bool advance(std::size_t c) {
        Rank& rank = ranks_[c];
        if (rank.next >= rank.list->instructions.size()) return false;
        const std::size_t index = rank.next;
        for (const std::uint32_t other : rank.list->after(rank.list->instructions[index]))
            if (rank.list->instructions[other].kind == InstructionKind::send &&
                sends_ != Sends::in_channels && !rank.messages[other]->is_taken)
                return false;
        if (Message* const message = rank.messages[index]) {
            if (rank.list->instructions[index].kind == InstructionKind::receive) {
                if (!take(*message, rank, c, index)) return false;
            } else {
                const bool is_new = !message->is_posted;
                if (is_new) {
                    message->is_posted = true;
                    message->known = rank.known;
                }
                if (sends_ == Sends::in_the_list && !message->is_taken) return is_new;
            }
        }
        if (Gathering* const gathering = rank.gatherings[index]) {
            const bool is_new = gathering->came.insert({c, rank.known}).second;
            if (gathering->came.size() < gathering->wanted) return is_new;
            if (gathering->known.empty()) {
                gathering->known = rank.known;
                for (const auto& [ignored, known] : gathering->came) join(gathering->known, known);
            }
            learn(rank, c, gathering->known, index);
        }
        ++rank.next;
        return true;
    }

    const schedule::Program& program_;
    const Sends sends_;
    std::vector<Rank> ranks_;
    std::vector<Lane> lanes_;
    std::map<MessageKey, Message> messages_;
    std::map<std::pair<std::vector<int>, int>, Gathering> gatherings_;
};

}  // namespace

MessagePlan plan_messages(const schedule::Program& program) {
    using Sends = OrderedWalk::Sends;
    if (program.plan.layout.pipeline == 1 || OrderedWalk(program, Sends::in_the_list).walk()) return {};
    for (const bool has_channels : {false, true})
        if (auto taken =
                OrderedWalk(program, has_channels ? Sends::in_channels : Sends::beside_the_list).walk())
            return {has_channels, std::move(*taken), false};
    core::require(false, "a Program comes to its end with buffered sends");
    return {};
}

std::int32_t boundary_of(const Instruction& message) {
    return message.stage +
           ((message.kind == InstructionKind::send) == (message.payload == schedule::PayloadKind::activation)
                ? 1
                : 0);
}

Lanes lanes_of(const schedule::RankProgram& list, bool has_channels) {
    Lanes lanes;
    std::map<std::tuple<InstructionKind, std::int32_t, schedule::PayloadKind, std::int32_t>, int> channels;
    for (const Instruction& instruction : list.instructions) {
        int lane = static_cast<int>(instruction.stream);
        if (has_channels && is_message(instruction)) {
            const auto [found, is_new] = channels.insert(
                {{instruction.kind, *instruction.peer, instruction.payload, boundary_of(instruction)},
                 lanes.count});
            lane = found->second;
            lanes.count += is_new;
        }
        lanes.of.push_back(lane);
    }
    return lanes;
}

std::optional<std::string> stuck_without_buffers(const schedule::Program& program, bool has_channels,
                                                 const std::vector<RankWaits>& waits, Branches branches) {
    return Walk(program, has_channels, waits, branches).stuck();
}

std::vector<std::vector<std::uint32_t>> waits_in_list_order(const schedule::RankProgram& list,
                                                            bool has_channels) {
    const Lanes lanes = lanes_of(list, has_channels);
    std::vector<std::vector<std::uint32_t>> waits(list.instructions.size());
    std::vector<std::optional<std::uint32_t>> last(lanes.count);
    for (std::uint32_t i = 0; i < list.instructions.size(); ++i) {
        const Instruction& own = list.instructions[i];
        if (is_message(own) || own.kind == InstructionKind::collective)
            for (int lane = 0; lane < lanes.count; ++lane)
                if (lane != lanes.of[i] && last[lane]) waits[i].push_back(*last[lane]);
        last[lanes.of[i]] = i;
    }
    return waits;
}

}  // namespace exec::cuda
