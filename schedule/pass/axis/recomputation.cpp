// Recomputation: what runs forward a second time before its backward, units or single operators
// (recompute.h).
#include "model/operators/rank_share.h"
#include "schedule/pass/axis/axes.h"
#include "schedule/pass/recompute.h"

namespace schedule {

namespace {

class Recomputation : public LoweringPass {
public:
    explicit Recomputation(RankDraft& draft) : LoweringPass(draft), context_(draft.plan.cost_context()) {}

    void enter_unit(RecipeDraft& recipe, std::int32_t unit) override {
        if (recipe.is_forward() || !recipe.context().has_input_part()) return;
        if (recipe.context().runs_again[unit]) recipe.run_again(recipe.context().units[unit]);
    }
    void cut(OperatorCuts& cuts) override {
        if (cuts.is_forward() || cuts.phase() == ComputePhase::backward_weight) return;
        for (const model::OperatorRange unit : cuts.recipe().units)
            if (unit.begin >= cuts.range().begin && unit.end <= cuts.range().end)
                for (const Rerun& rerun : reruns(*draft_.graph, unit, draft_.plan))
                    cuts.run_again(rerun.before, rerun.operators);
        for (std::int32_t i = cuts.range().begin; i < cuts.range().end; ++i)
            if (is_recomputed(op(i), draft_.plan) && !model::passes_keys(op(i), context_))
                cuts.before(i, compute_step({i, i + 1}, ComputePhase::recompute));
    }

private:
    const model::Operator& op(std::int32_t i) const { return draft_.graph->operators[i]; }

    const model::CostContext context_;  // in a ring attention runs again in pieces: that axis says how
};

}  // namespace

std::unique_ptr<LoweringPass> recomputation(RankDraft& draft) {
    if (draft.plan.recompute == Recompute::none) return nullptr;
    return std::make_unique<Recomputation>(draft);
}

}  // namespace schedule
