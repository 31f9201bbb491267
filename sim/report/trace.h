// A timeline for other eyes: Chrome/Perfetto trace JSON.
#pragma once

#include <string>
#include <vector>

#include "model/model_graph.h"
#include "schedule/program/program.h"
#include "schedule/program/timeline.h"

namespace sim {

// Trace Event Format (chrome://tracing, ui.perfetto.dev): one process a performer, one thread a stream,
// complete events in microseconds, counters for memory by kind. Works for simulated and executed timelines
// alike. `graph` is the model that the program was lowered from: a computation's `args.operators` names the
// first and the last of its operators and how many there are. `marks` are instants on a performer's lane:
// where memory runs out.
struct TraceMark {
    std::size_t performer = 0;
    schedule::Stream stream = schedule::Stream::compute;
    core::Seconds time;
    std::string text;
};
std::string chrome_trace(const schedule::Program& program, const model::ModelGraph& graph,
                         const schedule::Timeline& timeline, const schedule::MemoryTimeline& memory,
                         const std::vector<TraceMark>& marks = {});

// Both in one trace, rank by rank under each other: "rank 0 predicted", "rank 0 measured". A predicted
// performer may represent all ranks of its class.
std::string comparison_trace(const schedule::Program& program, const model::ModelGraph& graph,
                             const schedule::Timeline& predicted,
                             const schedule::MemoryTimeline& predicted_memory,
                             const schedule::Timeline& measured,
                             const schedule::MemoryTimeline& measured_memory);

// "F3", "B3", "send 3", "all_reduce gradient 2": a few letters for a box; `full` adds stage and bytes.
std::string label(const schedule::Program& program, const schedule::Instruction& instruction, bool full);

}  // namespace sim
