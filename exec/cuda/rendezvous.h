// Programs promise no deadlock where sends are buffered. NCCL buffers a few MiB of a message: a larger one leaves its sender when its receiver has come. Whether a
// Program needs its messages buffered is found by walking it; the backend then gives every channel between two ranks a stream of its own and keeps what is on
// its way, so that a send waits for its receiver and nobody for a send.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "schedule/program.h"

namespace exec::cuda {

// What runs in order on a rank: a stream of the Program each, or messages of one channel.
struct Lanes {
    std::vector<int> of;                 // by instruction
    int count = schedule::stream_count;  // the first are the Program's streams
};
Lanes lanes_of(const schedule::RankProgram& list, bool has_channels);

// The boundary between stages that a send or receive crosses: that of the stage behind it.
std::int32_t boundary_of(const schedule::Instruction& message);

// Of the Program's order. What the arena adds (waits for memory used again) and a host that waits for a mixture's counts are not walked: no case is known where they
// close a circle, and none is proven away.
// The instruction that the first rank that is stuck waits to end when nothing is buffered, or empty. With `has_channels` nothing waits for a send but those behind it
// in its channel.
std::string stuck_without_buffers(const schedule::Program& program, bool has_channels);

}  // namespace exec::cuda
