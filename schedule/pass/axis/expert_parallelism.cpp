// Mixtures over several ranks. Routed tokens go to their experts' ranks after `dispatch`, results come back
// after `experts`; backward the gradients of both go the other ways, each before the backward of its
// operator. A router's balance loss is of all tokens of a micro-batch: where ranks divide them, how many
// chose each expert is added up before its backward.
#include "model/operators/cost.h"
#include "model/operators/rank_share.h"
#include "schedule/pass/axis/axes.h"

namespace schedule {

namespace {

class ExpertParallelism : public LoweringPass {
public:
    explicit ExpertParallelism(RankDraft& draft) : LoweringPass(draft), context_(draft.plan.cost_context()) {}

    void cut(OperatorCuts& cuts) override {
        if (!cuts.is_forward() && cuts.phase() == ComputePhase::backward_weight) return;
        for (std::int32_t i = cuts.range().begin; i < cuts.range().end; ++i) {
            const model::Operator& op = draft_.graph->operators[i];
            if (!cuts.is_forward() && model::sums_choices(op, context_))
                cuts.before(i, collective_step({i, i + 1}, CollectiveKind::all_reduce, GroupKind::tokens,
                                               PayloadKind::activation_gradient, cuts.phase(),
                                               model::choices_bytes(op)));
            if (!model::exchanges_routed_tokens(op, context_)) continue;
            Step step = collective_step(
                {i, i + 1}, CollectiveKind::all_to_all, GroupKind::expert,
                cuts.is_forward() ? PayloadKind::activation : PayloadKind::activation_gradient, cuts.phase(),
                model::exchanged_bytes(*draft_.graph, op, context_));
            if (cuts.is_forward()) cuts.after(i, std::move(step));
            else cuts.before(i, std::move(step));
        }
    }

private:
    const model::CostContext context_;
};

}  // namespace

std::unique_ptr<LoweringPass> expert_parallelism(RankDraft& draft) {
    if (draft.plan.layout.expert_ranks() == 1 && draft.plan.layout.context == 1) return nullptr;
    return std::make_unique<ExpertParallelism>(draft);
}

}  // namespace schedule
