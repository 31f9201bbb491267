// Long steps from short ones: what a step of many micro-batches takes, where its schedule has come to a
// steady state with fewer.
#pragma once

#include <optional>
#include <string>

#include "sim/simulated_step.h"

namespace sim {

// What a step follows from.
struct Extrapolation {
    std::string how;
    int from = 0;  // micro-batches of the longest step that was simulated for it
};

// One short step that is in its steady state, with as many more blocks as the whole has. Nothing where no
// step up to `most` is, and where orders differ in more than repetitions of a block, or depend on times.
// `is_hopeless`: it repeats itself, but settles too late. A short step that shows that the whole one exceeds
// the memory is returned as it is (StepRun::overflows_early).
std::optional<StepRun> run_from_one(const StepTask& task, int total, int most, Extrapolation& made,
                                    bool& is_hopeless);

// Lowers short steps, a period apart; when two differ as the two before them do, in every instruction's end,
// the schedule has reached its steady state and the rest is a straight line (makespan is eventually linear in
// micro-batches: max-plus algebra, Baccelli et al., Synchronization and Linearity, 1992). Nothing where that
// does not happen up to `most`.
std::optional<StepRun> run_extrapolated(const StepTask& task, int total, int most, Extrapolation& made);

}  // namespace sim
