// How a prediction moves with the figures it rests on: predicted again with one of them larger.
#pragma once

#include <vector>

#include "sim/report/explain.h"

namespace sim {

// Fills both lists, the most influential first. Long steps are extrapolated from their steady state, as in a
// search; a figure that is not in the profile, or whose change cannot be predicted, is left out.
void find_influences(const model::ModelGraph& graph, const cluster::Cluster& cluster,
                     const schedule::Plan& plan, const ExplainOptions& options,
                     std::vector<Influence>& constants, std::vector<Influence>& figures);

}  // namespace sim
