// Programs promise no deadlock where sends are buffered. NCCL buffers a few MiB of a message: a larger one
// leaves its sender when its receiver has come. And a backend waits for more than the Program does: for
// memory that is used again, for sizes that the host must know. All such waits are for instructions earlier
// in a rank's own list, but which ones they are only planning tells, each rank's its own. So the order of
// messages is planned such that none of them can close a circle:
//
// 1. Let every rank perform its list one by one, sends too. Where that comes to its end, nothing that waits
// for earlier instructions can stand still: all waits are
//    contained in that order.
// 2. Else sends go beside the rest of the list, in order among themselves, and in that order it is worked out
// which instruction of the sender is the first that cannot
//    begin before a message is taken (it has received something that its receiver sent later, directly or
//    through others). What was sent is kept until there. Then whatever waits for memory waits for nothing
//    that is not contained in this order, which comes to its end.
// 3. Where that does not come to its end either (messages of V-shaped schedules are sent long before they are
// taken), sends are in order on their channel only, each
//    channel with a stream of its own, and nobody waits for a send; the rest is as in 2. This order is the
//    list's with buffered sends, which verify has walked.
//
// Ranks of other data and tensor coordinates do the same at the same places, so one of each pipeline
// coordinate tells for all.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "schedule/program/program.h"

namespace exec::cuda {

// What runs in order on a rank: a stream of the Program each, or messages of one channel.
struct Lanes {
    std::vector<int> of;                 // by instruction
    int count = schedule::stream_count;  // the first are the Program's streams
};
Lanes lanes_of(const schedule::RankProgram& list, bool has_channels);

// The boundary between stages that a send or receive crosses: that of the stage behind it.
std::int32_t boundary_of(const schedule::Instruction& message);

// What a rank waits for beyond the Program's order.
struct RankWaits {
    std::vector<std::vector<std::uint32_t>>
        of;  // by instruction: others of its list to wait for, for memory used again. Empty: none at all
    std::vector<std::uint32_t>
        host;  // instructions that the host waits for before it goes on in the list, ascending
};

struct MessagePlan {
    bool has_channels = false;
    // By class and instruction: of a send, the instruction of the list from which on what it sent may be
    // overwritten; the list's length: not in this step. Empty: at once.
    std::vector<std::vector<std::uint32_t>> taken;
};
MessagePlan plan_messages(const schedule::Program& program);

// The instruction that the first rank that is stuck waits to end when nothing is buffered, or empty. With
// `has_channels` nothing of the Program waits for a send but those behind it in its channel. `waits` by rank;
// empty: of the Program's order alone.
std::optional<std::string> stuck_without_buffers(const schedule::Program& program, bool has_channels,
                                                 const std::vector<RankWaits>& waits = {});

}  // namespace exec::cuda
