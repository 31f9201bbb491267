// The clock for ranks that share processor cores: the local CPU with more ranks than cores.
#pragma once

#include <vector>

#include "schedule/program/program.h"
#include "sim/engine/simulate.h"

namespace sim {

// Every rank is a performer and works through its list one instruction after another. Rank r works on core r
// mod `cores`; ranks that are working on one core at the same time share it equally (processor sharing),
// waiting ranks take nothing. Collectives and sends are work too: on a CPU the core does the copying.
// Durations are those of a rank alone on its core. With at least as many cores as ranks the result equals
// simulate() unfolded without streams.
Simulation simulate_shared_cores(const schedule::Program& program, const Durations& durations, int cores,
                                 const SimulateOptions& options = {});

}  // namespace sim
