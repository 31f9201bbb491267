// Passes over a compute order before it is lowered. Each takes a schedule and gives one that no longer knows
// an axis: what is left are virtual stages, each with its micro-batches.
#pragma once

#include "schedule/schedule.h"

namespace schedule {

// Parts of sequences as micro-batches of their own: those of one follow each other, first to last.
Schedule unroll_sequences(Schedule order);

// Copies of the model one after the other: stage s of direction d becomes stage d * stages + s, its
// micro-batches follow those of the directions before.
Schedule unroll_directions(Schedule order);

}  // namespace schedule
