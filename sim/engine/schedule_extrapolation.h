// A long step timed from a short one. In steady state a pipeline repeats itself: ends are a max-plus linear
// function of ends one block of micro-batches before, so once all of them lie one and the same time later
// than a block ago they will do so for ever (Baccelli et al., Synchronization and Linearity, 1992, chapter
// 3).
#pragma once

#include "schedule/pipeline/registry.h"
#include "sim/engine/schedule_timing.h"

namespace sim {

struct ExtrapolatedTiming {
    core::Seconds makespan, greatest_span;
    int played_micro_batches =
        0;  // of the longest run that was timed; shape.micro_batches when nothing was extrapolated
    core::Seconds per_block;  // duration of one further block
    int block = 0;            // micro-batches; 0 = timed in full
};

// Equal to timing all micro-batches. Extrapolates when the lists of two lengths differ by one block in their
// middle, and every action behind it ends the same time later on every rank; otherwise (too few
// micro-batches, orders with phases as long as the step, such as all forwards first) it times all of them.
// The shape must be allowed. `entry` must order by shape alone: orders made from measured times are timed in
// full.
ExtrapolatedTiming time_extrapolated(const schedule::PipelineSchedule& entry,
                                     const schedule::PipelineShape& shape, const ScheduleCosts& costs);

}  // namespace sim
