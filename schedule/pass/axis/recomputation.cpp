// Recomputation: what runs forward a second time before its backward, units or single operators
// (recompute.h).
#include "schedule/pass/axis/axes.h"
#include "schedule/pass/recompute.h"

namespace schedule {

namespace {

class Recomputation : public LoweringPass {
public:
    using LoweringPass::LoweringPass;

    void enter_unit(RecipeDraft& recipe, std::int32_t unit) override {
        if (recipe.is_forward() || !recipe.context().has_input_part()) return;
        if (recipe.context().runs_again[unit]) recipe.run_again(recipe.context().units[unit]);
    }
    void cut(OperatorCuts& cuts) override {
        if (cuts.is_forward() || cuts.phase() == ComputePhase::backward_weight) return;
        for (std::int32_t i = cuts.range().begin; i < cuts.range().end; ++i)
            if (is_recomputed(draft_.graph->operators[i], draft_.plan.recompute))
                cuts.before(i, compute_step({i, i + 1}, ComputePhase::recompute));
    }
};

}  // namespace

std::unique_ptr<LoweringPass> recomputation(RankDraft& draft) {
    if (draft.plan.recompute == Recompute::none) return nullptr;
    return std::make_unique<Recomputation>(draft);
}

}  // namespace schedule
