// Bytes a rank needs, by kind, from the graph and the plan: the tables lowering writes into buffers, and the
// planner asks before any Program exists.
#pragma once

#include <cstdint>
#include <vector>

#include "model/model_fwd.h"
#include "model/operators/workspace.h"
#include "schedule/plan/plan.h"

namespace schedule {

// Memory that one stage keeps and needs for one micro-batch. The CPU executor allocates exactly these tensors
// (exec/cpu), so the figures are not estimates there.
//
// The walk, forward: an operator's output is taken when it runs; a tensor is freed after its last use in the
// stage unless backward needs it or it is sent. flatten, parallel_enter and parallel_exit share their input's
// storage (an all-reduce overwrites its input) unless sequence parallelism changes the size. Backward (in
// reverse): the gradient of a tensor is taken at its first contribution and freed after the backward of its
// producer; a saved tensor is freed after the backward of the lowest operator that saved it. The gradient of
// logits is written over them where model::gradient_overwrites says so and they do not cross the stage's
// edge. Ids, labels and statistics have no gradient. Recompute full runs a unit forward again, keeping what
// its backward needs, right before its backward. With sequence parallelism the tokens that a parallel_enter
// gathered are gathered again in backward and freed after its backward.
struct ActivationFootprint {
    core::Bytes saved;  // from forward to backward: union of saved tensors and operators' saved contexts
                        // (recompute full: the unit inputs)
    core::Bytes forward_transient;  // peak of memory that forward holds beyond `saved`, `received` and `sent`
    core::Bytes backward_transient;  // peak of memory that backward (with recomputed activations) holds
                                     // beyond `saved` and the two boundary gradients
    core::Bytes received;  // tensors from the stage before that backward does not need: held from arrival to
                           // the end of forward
    core::Bytes received_saved;  // ... that backward needs: part of `saved`, held from arrival
    core::Bytes sent;  // tensors for the stage after that are not in `saved`: held from forward until sent
    core::Bytes received_gradient;  // gradients from the stage after: from arrival to the end of backward
    core::Bytes sent_gradient;      // gradients for the stage before: from the start of backward until sent
    // Split backward: backward_input frees the tensors that backward_weight does not read, and keeps the
    // others.
    core::Bytes saved_for_weight;  // part of `saved` that is held until backward_weight: tensors that it
                                   // reads, and memory that output gradients have taken over
    core::Bytes kept_for_weight;   // the other output gradients and recomputed tensors, from the start of
                                   // backward_input to the end of backward_weight
    core::Bytes input_transient;  // peak of backward_input beyond `saved`, `kept_for_weight` and the boundary
                                  // gradients
    core::Bytes weight_transient;  // peak of backward_weight beyond `saved_for_weight` and `kept_for_weight`
    // Parts of sequences (model/segment.h). Where a unit runs again, `saved` holds the keys and values that
    // later parts read.
    core::Bytes key_value_gradient;  // gradient that later parts leave for the keys and values of one
                                     // segment: from the backward of the last segment to the end of its own
    core::Bytes reused;  // last segment: the part of `saved` freed early enough that the gradients which it
                         // leaves for earlier parts reuse the memory
    // Offload, by unit of the stage: the part of `saved` that may leave after the unit's forward, because no
    // other unit reads it and no transfer carries it.
    struct UnitSaved {
        model::OperatorRange operators;
        core::Bytes bytes;
        core::Bytes for_weight;  // part of `bytes` that a split backward needs until backward_weight
    };
    std::vector<UnitSaved> offloadable;
};
// Offload: do the saved tensors of a unit leave between its forward and the backward pass that first reads
// them? `forward` and `backward` are indices among the tasks of the rank; a task is one pass through one
// unit. The load begins with the task `horizon` before the backward. Another task must lie between that one
// and the forward, or nothing would be gained.
inline bool leaves(std::int64_t forward, std::int64_t backward, int horizon) {
    return backward - horizon >= forward + 2;
}
ActivationFootprint activation_footprint(const model::ModelGraph& graph, model::OperatorRange stage,
                                         const Plan& plan, bool is_forward_only = false);
// The same walk with the workspace of an accelerator's kernels (model/operators/workspace.h): the transients
// are larger, the rest is equal. The executor's kernels have no workspace, so Programs are lowered without
// it.
ActivationFootprint activation_footprint(const model::ModelGraph& graph, model::OperatorRange stage,
                                         const Plan& plan, const model::WorkspaceRules& workspace,
                                         bool is_forward_only = false);
// Of several stages, in their order. Those that are alike are walked through once, where it is told which are
// (null: none). `workspace`: null for none.
std::vector<ActivationFootprint> activation_footprints(const model::ModelGraph& graph,
                                                       const std::vector<model::OperatorRange>& stages,
                                                       const Plan& plan,
                                                       const model::WorkspaceRules* workspace,
                                                       bool is_forward_only, model::Repetition* repetition);

struct StateFootprint {
    core::Bytes parameters, gradients,
        optimizer;        // on one rank, sharding applied; master weights are optimizer state. Of gradients
                          // on hosts those that must be reduced once a step are not counted
    core::Bytes on_host;  // of an optimizer there, not of the rank: not in the sum
    core::Bytes sum() const { return parameters + gradients + optimizer; }
};
StateFootprint state_footprint(const model::ModelGraph& graph, model::OperatorRange stage, const Plan& plan);
// State of a rank with several virtual stages: a parameter that two of them use is held once.
StateFootprint state_footprint(const model::ModelGraph& graph,
                               const std::vector<model::OperatorRange>& stages, const Plan& plan);
// The same in two steps: elements of the parameters before any sharding, and the bytes for so many.
struct StateElements {
    double dense = 0, experts = 0;  // experts where they are divided over ranks
};
StateElements state_elements(const model::ModelGraph& graph, const std::vector<model::OperatorRange>& stages,
                             const Plan& plan);
StateFootprint state_footprint(const StateElements& elements, const Plan& plan);

}  // namespace schedule
