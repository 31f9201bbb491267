// `smplan --pareto`: the front of time, cost and memory over all clusters that are asked for.
#pragma once

#include <cstddef>
#include <vector>

#include "api/plan/question.h"
#include "api/reply.h"

namespace api {

// The indices of targets, those of one cluster together.
std::vector<std::vector<std::size_t>> by_cluster(const std::vector<planner::Target>& targets);

// Searches every cluster by itself, for speed and for memory (on one cluster cost follows time): the front of
// all plans that were simulated, or no_plan.
Reply front_reply(const Question& question);

}  // namespace api
