// One pass of a micro-batch through a stage, cut where something interleaves: tensor-parallel collectives,
// sharded parameters, gradient buckets, recomputation. A recipe is made once per stage and kind of pass;
// lowering repeats it for every micro-batch.
#pragma once

#include <vector>

#include "model/model_graph.h"
#include "model/operators/cost.h"
#include "schedule/pass/buckets.h"
#include "schedule/plan/plan.h"
#include "schedule/program/program.h"

namespace schedule {

struct Step {
    // unit: a unit's pass begins here; store: its saved tensors may leave (both with offload only).
    enum class Kind : std::uint8_t { compute, collective, reduce, unit, store } kind = Kind::compute;
    bool works() const { return kind == Kind::compute || kind == Kind::collective; }
    ComputePhase phase = ComputePhase::forward;
    model::OperatorRange operators;
    CollectiveKind collective = CollectiveKind::all_reduce;
    GroupKind group = GroupKind::tensor;
    PayloadKind payload = PayloadKind::none;
    core::Bytes bytes;
    bool starts_early = false;         // collective: may run beside the compute before it
    core::OptionalIndex bucket{};      // reduce
    core::OptionalIndex unit{};        // of the stage: unit, store
    std::vector<std::int32_t> begins;  // compute: buckets whose gradient begins here
};

// Steps that need the same gathered parameters: a unit with sharded parameters, else the whole pass.
struct StepGroup {
    std::vector<std::int32_t> gathers;  // buckets
    std::vector<Step> steps;
};

using Recipe = std::vector<StepGroup>;

// Reductions of a backward pass: per operator (relative to the stage's begin) the buckets that its backward
// completes; empty = nothing.
using Reductions = std::vector<std::vector<std::int32_t>>;

class RecipeMaker {
public:
    RecipeMaker(const model::ModelGraph& graph, const Plan& plan, std::int32_t stage_index,
                const StageInfo& stage, const RankBuckets& buckets);

    Recipe forward() const;
    // `phase` is backward, backward_input or backward_weight. `begins`: gradients that need a buffer of the
    // pass.
    Recipe backward(ComputePhase phase, const Reductions& reductions, const Reductions& begins) const;

private:
    const model::Operator& op(std::int32_t i) const { return graph_.operators[i]; }
    Step mark(Step::Kind kind, std::size_t unit) const;
    std::vector<std::int32_t> gathers_of(model::OperatorRange unit) const;
    std::vector<std::int32_t> gathers_for_weight(model::OperatorRange unit) const;
    void append_forward(std::vector<Step>& steps, model::OperatorRange range, ComputePhase phase) const;
    void append_backward(std::vector<Step>& steps, model::OperatorRange unit, ComputePhase phase,
                         const Reductions& reductions, const Reductions& begins) const;
    Step collective(std::int32_t i, CollectiveKind kind, PayloadKind payload, ComputePhase phase,
                    core::Bytes bytes, GroupKind group = GroupKind::tensor) const;
    core::Bytes input_bytes(std::int32_t i) const {
        return model::tensor_bytes(graph_, op(i).inputs[0], context_);
    }
    core::Bytes output_bytes(std::int32_t i) const {
        return model::tensor_bytes(graph_, op(i).output, context_);
    }

    const model::ModelGraph& graph_;
    const Plan& plan_;
    const model::CostContext context_;
    const std::int32_t stage_index_;
    const StageInfo& stage_;
    const RankBuckets& buckets_;
};

}  // namespace schedule
