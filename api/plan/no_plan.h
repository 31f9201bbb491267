// Why there is no plan, and what would make one fit.
#pragma once

#include <vector>

#include "api/plan/question.h"
#include "core/diagnostics.h"
#include "planner/search.h"

namespace api {

// The constraint that no plan meets, or the memory that is missing and a remedy. `diagnostics`: of the
// search.
core::Diagnostics why_no_plan(const Request& request, const model::ModelGraph& graph,
                              const std::vector<planner::Target>& targets,
                              const planner::SearchResult& result, const core::Diagnostics& diagnostics);

}  // namespace api
