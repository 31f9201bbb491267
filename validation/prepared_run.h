// A published run made ready to be predicted: its graph, its cluster as the source used it, its plan with the
// partition its code makes.
#pragma once

#include <optional>

#include "cluster/topology.h"
#include "core/diagnostics_fwd.h"
#include "model/model_graph.h"
#include "sim/cost/constants.h"
#include "sim/evaluate.h"
#include "validation/published_run.h"

namespace validation {

struct PreparedRun {
    model::ModelGraph graph;
    cluster::Cluster cluster;
    schedule::Plan plan;
};

// A model, device or plan that cannot be simulated: diagnostics say why; nothing is returned.
std::optional<PreparedRun> prepare(const PublishedRun& run, core::Diagnostics& diagnostics,
                                   const sim::CostConstants& constants = {});

}  // namespace validation
