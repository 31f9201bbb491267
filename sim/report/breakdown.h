// Where a rank's step goes: every moment belongs to exactly one part.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "core/units.h"
#include "schedule/program/program.h"
#include "sim/engine/overlapped_compute.h"
#include "sim/engine/simulate.h"
#include "sim/evaluate.h"

namespace sim {

// The performer whose last instruction ends the step; among several the one that computes longest, then the
// first.
std::size_t critical_performer(const schedule::Program& program, const Simulation& simulation);

// Of a step.
struct TimeWindow {
    core::Seconds from, to;
};

// Compute counts before communication that it hides, communication (tensor, then gathers and reductions, then
// transfers) before waiting; what is left is bubble. A collective or receive counts while data moves; waiting
// for its partner is bubble. Gathers of sharded parameters are `sharding`, reductions of gradients
// `data_parallel`, the reduction of tied embeddings between stages `pipeline`. `host`: see PricedProgram.
// What compute loses to collectives beside it (`losses`, empty: nothing) counts as theirs. The parts sum to
// the makespan, or to the window where one is given: what of them lies within it.
Breakdown break_down(const schedule::Program& program, const Simulation& simulation,
                     const std::vector<std::vector<core::Seconds>>& host, std::size_t performer,
                     bool has_concurrent_streams, const OverlapLosses& losses = {},
                     const std::optional<TimeWindow>& window = {});

core::Seconds sum(const Breakdown& breakdown);

// Names as in the command-line contract, in its order, with the part of the breakdown that each names.
struct BreakdownPart {
    const char* name;
    core::Seconds Breakdown::* part;
};
const std::vector<BreakdownPart>& breakdown_parts();

}  // namespace sim
