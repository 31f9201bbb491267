// From the [job] table and its scenario to a job with nothing left open: step times, evaluations and the
// bytes of a checkpoint are those of the scenario's plan on its cluster.
#pragma once

#include <optional>
#include <string>

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

// `table`: [job], for the places of diagnostics.
std::optional<ResolvedJob> resolve_job(const Job& job, const sim::Scenario& scenario,
                                       const core::Value& table, core::Diagnostics& diagnostics);

// Parameters and optimizer state of the whole model, each once: master parameters beside low-precision ones
// are part of it.
core::Bytes checkpoint_bytes(const model::ModelGraph& graph, const schedule::Plan& plan);

// How many nodes a plan without some of its data-parallel replicas needs, and how long its step is: the
// global batch stays, so that replicas have more micro-batches, the busiest ceil(all / replicas). By nodes;
// nothing where no replica fits. `scenario`'s own step time is `full`.
std::vector<std::optional<core::Seconds>> step_of_nodes(const sim::Scenario& scenario, core::Seconds full,
                                                        int least_nodes, core::Diagnostics& diagnostics);

}  // namespace jobs
