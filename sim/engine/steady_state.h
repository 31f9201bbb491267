// A long step from one short one. In steady state a pipeline repeats itself: everything happens one and the
// same time after what happened some micro-batches before. Ends are then a function of those within the reach
// of what is in flight, which only adds a time, and adds it again with every further repetition (max-plus
// algebra: Baccelli et al., Synchronization and Linearity, 1992, chapter 3; transfers that share links depend
// on no more either). What comes before and behind stays as it is.
#pragma once

#include <optional>

#include "core/units.h"
#include "schedule/program/program.h"
#include "schedule/program/timeline.h"
#include "schedule/schedule.h"

namespace sim {

// The least block of micro-batches (of each direction) of which the longer order has more than the shorter
// one, in the middle of every rank's list, where the shorter one too repeats it for as many micro-batches as
// are in flight and once more. Nothing where there is none of at most twice the ranks.
std::optional<int> repeated_block(const schedule::Schedule& shorter, const schedule::Schedule& longer);

struct SteadyState {
    int blocks = 1;        // after so many everything repeats itself
    core::Seconds period;  // of these
    core::Seconds from;    // a moment after which, for one period, the performer is in the steady state
};

// Of the simulation of a Program whose order repeats a block: do all ends of all performers lie one period
// after those of some blocks before, for as many blocks in the middle as anything in flight reaches, and does
// a block give back all memory that it takes? Nothing where they do not, and where copies are not ahead alike
// in every block, or parameters are updated on the way. `performer`: for SteadyState::from.
std::optional<SteadyState> find_steady_state(const schedule::Program& program,
                                             const schedule::Timeline& timeline, int block,
                                             std::size_t performer);

}  // namespace sim
