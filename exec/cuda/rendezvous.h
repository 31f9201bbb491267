// The order of messages on NCCL, planned such that no rank deadlocks.
//
// A Program promises no deadlock where sends are buffered. NCCL buffers a few MiB of a message only: a larger
// one leaves its sender at a rendezvous with its receiver. A backend also waits for more than the Program
// does: for memory that is used again, and for sizes that the host must know. All such waits are for
// instructions earlier in a rank's own list, but only planning tells which ones, for each rank its own. Three
// orders are tried; the first that reaches the end of every list is taken:
//
// 1. Every rank performs its list one by one, sends included. Waits for earlier instructions cannot deadlock
//    here: all of them are contained in that order.
// 2. Sends go beside the rest of the list, in order among themselves. The same walk finds the first
//    instruction of the sender that cannot begin before a message is taken (the sender has received something
//    that its receiver sent later, directly or through other ranks). What was sent is kept until that
//    instruction. Then a wait for memory waits for nothing outside this order.
// 3. Sends are in order on their channel only, each channel has a stream of its own, and no instruction waits
//    for a send. The rest is as in 2. V-shaped schedules need this: they send long before they receive. This
//    is the order of the list with buffered sends, which verify has walked.
//
// Ranks of other data and tensor coordinates do the same in the same order, so that one rank of each pipeline
// coordinate stands for all.
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
