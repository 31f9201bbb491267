// When the tensors of one virtual stage live: the walk that schedule/plan/memory.h states, as tables that the
// executor looks up.
#pragma once

#include <vector>

#include "model/model_fwd.h"
#include "model/operators/cost_context.h"
#include "schedule/program/program.h"

namespace exec {

// Indexed by operator relative to the stage's begin, or by tensor. A storage is the tensor whose array others
// share (views).
struct StagePlan {
    model::OperatorRange operators;
    bool splits_backward = false;

    std::vector<std::int32_t> storage;                 // by tensor: where its values lie
    std::vector<std::int32_t> gradient_storage;        // by tensor: where its gradient lies
    std::vector<char> has_gradient;                    // by tensor
    std::vector<char> is_sent, is_received, is_saved;  // by storage

    struct OperatorPlan {
        std::size_t saved_context_bytes = 0;
        bool is_recomputed = false;                    // its unit runs forward again before its backward
        bool is_recomputed_alone = false;              // selective: only this operator does
        std::vector<std::int32_t> free_after_forward;  // storages
        std::vector<std::int32_t> free_after_recompute;
        std::vector<std::int32_t> free_after_backward;
        std::vector<std::int32_t>
            free_after_input;  // backward_input of a split backward: what weights do not need
        bool drops_saved_context_after_forward = false;
    };
    std::vector<OperatorPlan> plans;
    // Offload: storages that may leave after a unit's forward (schedule/plan/memory.h, offloadable).
    struct UnitPlan {
        model::OperatorRange operators;
        std::vector<std::int32_t> storages;
    };
    std::vector<UnitPlan> units;
    const OperatorPlan& plan_of(std::int32_t op) const {
        return plans[static_cast<std::size_t>(op - operators.begin)];
    }
};

StagePlan make_stage_plan(const model::ModelGraph& graph, const schedule::Program& program,
                          std::int32_t stage, bool is_forward_only, bool splits_backward);

}  // namespace exec
