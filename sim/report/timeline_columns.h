// A timeline as columns of integers, for the page that draws it: what repeats is written once.
#pragma once

#include <string>
#include <vector>

#include "core/units.h"
#include "model/model_fwd.h"
#include "schedule/program/program.h"
#include "schedule/program/timeline.h"

namespace sim {

// A run of the Program whose performers get lanes. `name` stands after their rank: "predicted".
struct NamedTimeline {
    const schedule::Timeline& timeline;
    const schedule::MemoryTimeline& memory;
    std::string name = {};
    // By performer, what a table says that it holds at its peak: memory is shifted to it, as what lies
    // outside the allocator is no buffer of the Program. Empty: what the buffers hold.
    std::vector<core::Bytes> peaks = {};
};

// One JSON object (docs/formats.md, "Report pages"); ranks in order, those of several timelines under each
// other. Times are whole nanoseconds: a slice begins where the one before it on its lane ended, plus a gap.
std::string timeline_columns(const schedule::Program& program, const model::ModelGraph& graph,
                             const std::vector<NamedTimeline>& timelines);

}  // namespace sim
