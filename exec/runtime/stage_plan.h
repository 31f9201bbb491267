// When the tensors of one virtual stage live: the walk that schedule/plan/memory.h states, as tables that the
// executor looks up.
#pragma once

#include <vector>

#include "core/index/indexed_vector.h"
#include "model/model_fwd.h"
#include "model/operators/cost_context.h"
#include "schedule/program/program.h"

namespace exec {

// A storage is the tensor whose array others share (views).
struct StagePlan {
    template <class T>
    using ByTensor = core::IndexedVector<model::TensorId, T>;

    model::OperatorRange operators;
    bool splits_backward = false;

    ByTensor<model::TensorId> storage;           // where its values lie
    ByTensor<model::TensorId> gradient_storage;  // where its gradient lies
    ByTensor<char> has_gradient;
    ByTensor<char> is_overwritten;                  // by its gradient
    ByTensor<char> is_sent, is_received, is_saved;  // by storage

    struct OperatorPlan {
        std::size_t saved_context_bytes = 0, late_context_bytes = 0;
        bool is_recomputed = false;  // runs forward again before its backward, and what it made is freed
        bool is_recomputed_alone = false;                 // core of attention, selective: its output is kept
        std::vector<model::TensorId> free_after_forward;  // storages
        std::vector<model::TensorId> free_after_recompute;
        std::vector<model::TensorId> free_after_backward;
        // backward_input of a split backward: what weights do not need
        std::vector<model::TensorId> free_after_input;
        bool drops_saved_context_after_forward = false;
    };
    std::vector<OperatorPlan> plans;  // by operator relative to the stage's begin
    // Offload: storages that may leave after a unit's forward (schedule/plan/memory.h, offloadable).
    struct UnitPlan {
        model::OperatorRange operators;
        std::vector<model::TensorId> storages;
    };
    std::vector<UnitPlan> units;
    const OperatorPlan& plan_of(std::int32_t op) const { return plans[op - operators.begin]; }
};

StagePlan make_stage_plan(const model::ModelGraph& graph, const schedule::Program& program,
                          std::int32_t stage, bool is_forward_only, bool splits_backward);

}  // namespace exec
