// Whether some of the nodes that were asked for are better left idle.
#pragma once

#include <optional>
#include <string>

#include "api/plan/question.h"
#include "core/value.h"
#include "planner/search.h"

namespace api {

struct FewerNodes {
    int nodes = 0, asked = 0;
    planner::RankedPlan best;  // on so many of them
    double faster_pct = 0;     // than the best on all
    bool is_proven = false;    // of that number of nodes
};

// Searches of the powers of two below the number of nodes that was asked for, the next lower one as long as
// that gains: of plans for speed whose step is so little compute that as much on fewer nodes may take less.
// Nothing where no fewer are faster.
std::optional<FewerNodes> fewer_nodes(const Request& request, const model::ModelGraph& graph,
                                      const std::vector<planner::Target>& targets,
                                      const planner::RankedPlan& best);
core::Value to_value(const FewerNodes& fewer);
std::string text_of(const FewerNodes& fewer);

}  // namespace api
