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
// All of this counts on streams that run at once. Branches of a CUDA graph are not promised to (CUDA
// programming guide, "CUDA Graphs": nodes are scheduled "anytime" after those that they depend on), nor are
// the streams of several ranks that share one device. There every message and collective waits for all
// instructions before it in the list (waits_in_list_order): at most one of them waits for other ranks at a
// time, all that it needs is done, and order 1 applies whichever branch goes first. A Program that needs
// order 2 or 3 is not captured.
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
    // Order 1: the lists end where ranks perform them one by one, sends included.
    bool holds_in_list_order = true;
};
MessagePlan plan_messages(const schedule::Program& program);

// For every instruction that meets other ranks the last instruction before it on each other lane; for others
// none.
std::vector<std::vector<std::uint32_t>> waits_in_list_order(const schedule::RankProgram& list,
                                                            bool has_channels);

// What of a rank's list may run beside one another: all lanes; or, as in a graph whose branches are performed
// one at a time, nothing, of what could begin that of the first or of the last lane first.
enum class Branches : std::uint8_t { at_once, first_alone, last_alone };

// The instruction that the first rank that is stuck waits to end when nothing is buffered, or empty. With
// `has_channels` nothing of the Program waits for a send but those behind it in its channel. `waits` by rank;
// empty: of the Program's order alone.
std::optional<std::string> stuck_without_buffers(const schedule::Program& program, bool has_channels,
                                                 const std::vector<RankWaits>& waits = {},
                                                 Branches branches = Branches::at_once);

}  // namespace exec::cuda
