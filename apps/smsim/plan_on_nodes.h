// Plans for the nodes that failures leave an elastic job: jobs/ asks, planner/ answers.
#pragma once

#include "jobs/resolve_job.h"
#include "sim/scenario.h"

namespace apps {

// Searches plans for fewer nodes of the scenario's cluster, with its model, global batch, precision,
// optimizer, framework and kernels, all else free. `scenario` must outlive it. `threads` 0: one a core; the
// answer does not depend on it.
jobs::PlanOnNodes plan_on_nodes(const sim::Scenario& scenario, int threads);

}  // namespace apps
