// Bytes a rank needs, by kind, from the graph and the plan: the tables lowering writes into buffers, and the planner asks before any Program exists.
#pragma once

#include "model/model_graph.h"
#include "schedule/plan.h"

namespace schedule {

// What one stage keeps and needs for one micro-batch. The CPU executor allocates exactly these tensors (exec/cpu), so the figures are not estimates there.
struct ActivationFootprint {
    core::Bytes saved;               // from forward to backward: union of saved tensors and operators' extras (recompute full: the unit inputs)
    core::Bytes forward_transient;   // peak of what forward holds beyond `saved`
    core::Bytes backward_transient;  // peak of what backward (with recomputed activations) holds beyond `saved`: gradients of activations, temporaries
};
ActivationFootprint activation_footprint(const model::ModelGraph& graph, model::OperatorRange stage, const Plan& plan);

struct StateFootprint {
    core::Bytes parameters, gradients, optimizer;  // on one rank, sharding applied; master weights are optimizer state
};
StateFootprint state_footprint(const model::ModelGraph& graph, model::OperatorRange stage, const Plan& plan);

}  // namespace schedule
