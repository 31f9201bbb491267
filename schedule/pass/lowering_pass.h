// One concern of lowering: an axis of parallelism, a way to save memory, or a part of the step's end. It says
// where it cuts the passes of micro-batches through stages, and what it appends to a rank's list there and
// then. lowering_passes.cpp lists all of them, in order; each is one file in axis/.
//
// The hooks are called in the order of the list, and a rank's list is written once from front to back:
// instructions name what they wait for by its number, so what comes before must be written before.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "schedule/pass/recipe.h"

namespace schedule {

// A pass of one micro-batch through one stage, while it is lowered.
struct StagePass {
    const RankDraft::Stage& stage;
    std::int32_t local = 0;  // position of the stage in RankDraft::stages
    std::int32_t micro_batch = 0;
    ComputePhase phase = ComputePhase::forward;  // forward, backward, backward_input or backward_weight
    const ActivationFootprint& footprint;
    bool completes_gradients = false;
    // Buffers for its first and with its last step that works.
    std::vector<std::uint32_t>& takes;
    std::vector<std::uint32_t> gives_back = {};
    // Forward: of what the footprint saves, the part that leaves; for_weight a part of that.
    core::Bytes leaves = {}, leaves_for_weight = {};
};

// What ends: a step, or with an asynchronous schedule the micro-batches of one update.
struct Ending {
    bool is_of_step = true;
    bool updates = false;
    std::int32_t update = -1;  // asynchronous: its number in the step
};

class LoweringPass {
public:
    explicit LoweringPass(RankDraft& draft) : draft_(draft) {}
    virtual ~LoweringPass() = default;
    LoweringPass(const LoweringPass&) = delete;
    LoweringPass& operator=(const LoweringPass&) = delete;

    // While recipes are made: a unit of the stage is entered or (forward) left, operators run as one, all
    // steps are there.
    virtual void enter_unit(RecipeDraft&, std::int32_t /*unit*/) {}
    virtual void leave_unit(RecipeDraft&, std::int32_t /*unit*/) {}
    virtual void cut(OperatorCuts&) {}
    virtual void finish(RecipeDraft&) {}

    // While the list is written.
    virtual void begin_step() {}
    virtual void begin_pass(StagePass&) {}
    virtual void perform(const Hook&, const StagePass&) {}
    virtual void end(const Ending&) {}

protected:
    RankDraft& draft_;
};

// Null where the plan has nothing for it.
using MakeLoweringPass = std::unique_ptr<LoweringPass> (*)(RankDraft& draft);

// All that the draft's plan needs, in order.
std::vector<std::unique_ptr<LoweringPass>> lowering_passes(RankDraft& draft);

}  // namespace schedule
