// Buffers taken and given back over time, by kind: the memory half of a simulation.
#pragma once

#include <vector>

#include "core/units.h"
#include "schedule/program.h"
#include "schedule/timeline.h"

namespace sim {

// Adds one performer to `memory`: its class's list with the span of every instruction. Buffers are taken at the start and given back at the end of an
// instruction; at one moment the effects of earlier listed instructions come first, so a buffer handed on in a list is never counted twice.
void sweep_memory(const schedule::RankProgram& program, const std::vector<schedule::Span>& spans, bool keeps_samples, schedule::MemoryTimeline& memory);

}  // namespace sim
