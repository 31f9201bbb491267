// The best plan to train a model on instances one can rent, with the account of what was looked at.
#pragma once

#include <string>
#include <vector>

#include "api/reply.h"

namespace api {

struct PlanReply : Reply {
    std::vector<std::string> plan_files = {};  // of plans[], in their order: what --out writes of the first
};

// The arguments of `smplan`: plans[], search{}, assumptions[]. no_plan where nothing fits, with what is
// missing and what would make it fit. A stopped search answers with its best so far, and throws Stopped where
// it has none.
PlanReply plan(const std::vector<std::string>& arguments, const Watch& watch);

}  // namespace api
