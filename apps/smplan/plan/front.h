// `smplan --pareto`: the front of time, cost and memory over all clusters that are asked for.
#pragma once

#include <cstddef>
#include <iosfwd>
#include <vector>

#include "apps/smplan/plan/question.h"

namespace apps {

// The indices of targets, those of one cluster together.
std::vector<std::vector<std::size_t>> by_cluster(const std::vector<planner::Target>& targets);

// Searches every cluster by itself, for speed and for memory (on one cluster cost follows time), and shows
// the front of all plans that were simulated; an exit code.
int show_front(const Question& question, bool as_json, std::ostream& out, std::ostream& err);

}  // namespace apps
