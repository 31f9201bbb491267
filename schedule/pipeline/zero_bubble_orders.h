// Two ways to build a zero-bubble order for measured times and a memory limit (Qi et al., arXiv 2401.10241),
// one virtual stage a rank.
#pragma once

#include <limits>
#include <optional>
#include <vector>

#include "schedule/pipeline/registry.h"

namespace schedule {

using ActionLists = std::vector<std::vector<Action>>;  // [rank][order]

// Round by round as the paper's automatic scheduler (section 3.1): in each round every stage adds at most one
// F, then one I, and W where it fits, where memory asks for one or where else the stage would idle most. The
// best of its eight variants by longest rank span; nothing when none keeps to the limit.
std::optional<ActionLists> zero_bubble_by_rounds(const PipelineShape& shape, double memory_limit);

// Builds orders on one virtual clock for all stages: the stage that is free first decides with the state at
// that time. The best of 60 variants; nothing when none keeps to the limit.
std::optional<ActionLists> zero_bubble_by_clock(const PipelineShape& shape, double memory_limit);

struct OrderFigures {
    double span = std::numeric_limits<double>::infinity(), makespan = span;
    bool is_better_than(const OrderFigures& other) const;  // by span, then by makespan
};
// Longest path through given lists; infinite when they exceed the limit.
OrderFigures play_order(const PipelineShape& shape, const ActionLists& lists, double memory_limit);

}  // namespace schedule
