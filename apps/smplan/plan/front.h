// `smplan --pareto`: the front of time, cost and memory over all clusters that are asked for.
#pragma once

#include <iosfwd>

#include "apps/smplan/plan/question.h"

namespace apps {

// Searches every cluster by itself, for speed and for memory (on one cluster cost follows time), and shows
// the front of all plans that were simulated; an exit code.
int show_front(const Question& question, bool as_json, std::ostream& out, std::ostream& err);

}  // namespace apps
