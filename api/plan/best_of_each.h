// The answers of several searches, one for each tool that plans may be for: the best of each beside one
// another.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "api/plan/beside.h"
#include "api/plan/plan_limits.h"
#include "api/plan/question.h"
#include "api/reply.h"
#include "core/diagnostics.h"
#include "planner/search.h"
#include "sim/uncertainty/interval.h"

namespace api {

struct Answer {
    Question question;
    planner::SearchResult result = {};
    std::vector<sim::PredictionIntervals> intervals = {};  // of its plans
    std::optional<CostOfLimits> limits = {};
    Beside beside = {};
    core::Diagnostics diagnostics = {};  // without plans: why
};

// The index of the answer whose first plan is best by the objective; 0 where none has one.
std::size_t best_of(const std::vector<Answer>& answers);
// no_plan where none has one.
Reply reply_of_each(const std::vector<Answer>& answers);
// The plan file of every row that the answer has: the plans of one, or the best of each of several.
// References are relative to the path of --out, else to the current folder.
std::vector<std::string> plan_files_of(const std::vector<Answer>& answers);

}  // namespace api
