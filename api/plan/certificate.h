// The file that `smplan --certificate` writes, and `smplan verify`.
#pragma once

#include <string>
#include <vector>

#include "api/options.h"
#include "api/plan/question.h"
#include "api/reply.h"
#include "core/value.h"
#include "planner/search.h"
#include "sim/uncertainty/interval.h"

namespace api {

// The arguments are enough to ask the question again; what follows them is the answer.
core::Value certificate_of(const Request& request, const model::ModelGraph& graph,
                           const planner::SearchResult& result, const std::vector<planner::Target>& targets,
                           const std::vector<std::string>& arguments,
                           const std::vector<sim::PredictionIntervals>& intervals);

OptionNames verify_options();
// The arguments of `smplan verify`: checks a certificate that `--certificate` wrote. no_plan where it does
// not hold.
Reply verify_certificate(const std::vector<std::string>& arguments);

}  // namespace api
