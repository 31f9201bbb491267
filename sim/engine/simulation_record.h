// The entry of one performer in what a simulation answers: the same whichever clock played it (simulate.cpp,
// shared_cores.cpp).
#pragma once

#include <vector>

#include "sim/engine/performers.h"
#include "sim/engine/simulate.h"

namespace sim {

// `spans` and `active_from` are moved from when the options keep them. Performers are recorded in their
// order.
void record(const Performer& performer, const schedule::RankProgram& list, core::Seconds end,
            std::vector<schedule::Span>& spans, std::vector<core::Seconds>& active_from,
            const SimulateOptions& options, Simulation& simulation);

}  // namespace sim
