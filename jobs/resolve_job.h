// From the [job] table and its scenario to a job with nothing left open: step times, evaluations and the
// bytes of a checkpoint are those of the scenario's plan on its cluster.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/diagnostics_fwd.h"
#include "core/value.h"
#include "jobs/job.h"
#include "jobs/job_model.h"
#include "jobs/straggler.h"
#include "sim/scenario.h"

namespace jobs {

struct ResolvedJob {
    JobModel model;
    core::Bytes checkpoint_bytes;
    std::optional<StragglerEffect> stragglers;
    // What the plan lacks to run at all: "pipeline rank 0: 43.1 GiB needed, 39.6 GiB available".
    std::optional<std::string> does_not_fit;
};

// A plan for fewer nodes of the scenario's cluster, with its model and global batch.
struct ReducedPlan {
    core::Seconds step;
    std::string description;  // "TP8 PP1 DP15"
};
// The best plan that a search finds on so many nodes; nothing where none fits.
using PlanOnNodes = std::function<std::optional<ReducedPlan>(int nodes)>;

// `table`: [job], for the places of diagnostics. `replan`: for jobs that ask for new plans on fewer nodes;
// without it they are refused.
std::optional<ResolvedJob> resolve_job(const Job& job, const sim::Scenario& scenario,
                                       const core::Value& table, core::Diagnostics& diagnostics,
                                       const PlanOnNodes& replan = {});

// Parameters and optimizer state of the whole model, each once: master parameters beside low-precision ones
// are part of it.
core::Bytes checkpoint_bytes(const model::ModelGraph& graph, const schedule::Plan& plan);

// How many nodes a plan without some of its data-parallel replicas needs, and how long its step is: the
// global batch stays, so that replicas have more micro-batches, the busiest ceil(all / replicas). By nodes;
// nothing where no replica fits. `scenario`'s own step time is `full`.
std::vector<std::optional<core::Seconds>> step_of_nodes(const sim::Scenario& scenario, core::Seconds full,
                                                        int least_nodes, core::Diagnostics& diagnostics);

// The same with the better of fewer replicas and a new plan, of so many nodes or of fewer while the others
// idle, never shorter than `full`. A given or disturbed step time keeps its share of the predicted one.
// `told`: each number of nodes on which a new plan is better.
std::vector<std::optional<core::Seconds>> replanned_step_of_nodes(const sim::Scenario& scenario,
                                                                  core::Seconds full, int least_nodes,
                                                                  const PlanOnNodes& replan,
                                                                  std::vector<std::string>& told,
                                                                  core::Diagnostics& diagnostics);

}  // namespace jobs
