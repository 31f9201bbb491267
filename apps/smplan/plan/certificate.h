// The file that `smplan --certificate` writes, and `smplan verify`.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "apps/smplan/plan/question.h"
#include "core/value.h"
#include "planner/search.h"
#include "sim/uncertainty/interval.h"

namespace apps {

// The arguments are enough to ask the question again; what follows them is the answer.
core::Value certificate_of(const Request& request, const model::ModelGraph& graph,
                           const planner::SearchResult& result, const std::vector<planner::Target>& targets,
                           const std::vector<std::string>& arguments,
                           const std::vector<sim::PredictionIntervals>& intervals);

// `smplan verify FILE`: checks a certificate that `--certificate` wrote.
int run_verify_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace apps
