// Questions beside the one that was asked, whose answers may be faster: some of the nodes left idle, state
// on the hosts though the devices have room for it.
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

struct OnHosts {
    planner::RankedPlan best;  // with its optimizer there, or all state
    double faster_pct = 0;     // than the best with all on the devices
    bool is_proven = false;    // of both
};

struct Beside {
    std::optional<FewerNodes> fewer = {};
    std::optional<OnHosts> on_hosts = {};
};

// `worked` is counted by searches so far, of which searches beside them leave some of the limit; they add
// theirs.

// Searches of the powers of two below the number of nodes that was asked for, the next lower one as long as
// that gains: of plans for speed whose step is so little compute that as much on fewer nodes may take less.
// Nothing where no fewer are faster.
std::optional<FewerNodes> fewer_nodes(const Request& request, const model::ModelGraph& graph,
                                      const std::vector<planner::Target>& targets,
                                      const planner::RankedPlan& best, core::Seconds& worked);
// A search with the optimizer, or all state, on the hosts: where devices were asked for first and the state
// takes a good part of them on few nodes, and where all that a step spends on saving memory is more than
// hosts need for an update. Nothing where that is not faster by a hundredth.
std::optional<OnHosts> faster_on_hosts(const Request& request, const model::ModelGraph& graph,
                                       const std::vector<planner::Target>& targets,
                                       const planner::RankedPlan& best, core::Seconds& worked);
void add_to(core::Value& document, const Beside& beside);
// Lines, each ended; none where no other answer is faster.
std::string text_of(const Beside& beside);

}  // namespace api
