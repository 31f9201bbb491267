// The answers of several searches, one for each tool that plans may be for: the best of each beside one
// another.
#pragma once

#include <iosfwd>
#include <optional>
#include <vector>

#include "apps/smplan/plan/question.h"
#include "apps/smplan/plan_limits.h"
#include "core/diagnostics.h"
#include "planner/search.h"
#include "sim/uncertainty/interval.h"

namespace apps {

struct Answer {
    Question question;
    planner::SearchResult result = {};
    std::vector<sim::PredictionIntervals> intervals = {};  // of its plans
    std::optional<CostOfLimits> limits = {};
    core::Diagnostics diagnostics = {};  // without plans: why
};

// The index of the answer whose first plan is best by the objective; 0 where none has one.
std::size_t best_of(const std::vector<Answer>& answers);
// good, or no_plan where none has one.
int show_best_of_each(const std::vector<Answer>& answers, bool as_json, std::ostream& out, std::ostream& err);

}  // namespace apps
