// Why a plan is as it is, in numbers.
#pragma once

#include <string>
#include <vector>

#include "planner/search.h"

namespace planner {

// The largest part of the step after plain compute when it costs more than a tenth of the step; "memory" when
// the peak is within two percent of what there is (a larger micro-batch or less recomputation would not fit);
// else "compute".
std::string bound_by(const sim::Evaluation& evaluation);

// One sentence: against the runner-up for the winner, against the winner for the others; by what was asked
// for, and by the part of the step that makes the slower one slower.
std::string compare(const RankedPlan& plan, const RankedPlan* other, bool is_winner,
                    const std::vector<Target>& targets, Objective objective);

// "TP8 PP4 DP4 interleaved_1f1b x2, micro-batch 1 x 128, full recomputation".
std::string describe(const schedule::Plan& plan);
// The degree of context parallelism, "4 a2a" where heads are exchanged.
std::string context_text(const schedule::Plan& plan);

}  // namespace planner
