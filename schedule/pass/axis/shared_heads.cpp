// Heads of keys and values that tensor-parallel ranks share. The packed projection is gathered before an
// attention, forward and again before its backward, and the gradient of what was gathered is scattered after
// it (model::gathers_projection). Megatron-core keeps what it gathered forward for backward: a gather less,
// and the columns of all ranks in memory.
#include "model/operators/rank_share.h"
#include "schedule/pass/axis/axes.h"

namespace schedule {

namespace {

class SharedHeads : public LoweringPass {
public:
    explicit SharedHeads(RankDraft& draft) : LoweringPass(draft), context_(draft.plan.cost_context()) {}

    void cut(OperatorCuts& cuts) override {
        if (!cuts.is_forward() && cuts.phase() == ComputePhase::backward_weight) return;
        const model::ModelGraph& graph = *draft_.graph;
        for (std::int32_t i = cuts.range().begin; i < cuts.range().end; ++i) {
            const model::Operator& op = graph.operators[i];
            if (!model::gathers_projection(op, context_)) continue;
            const auto step = [&](CollectiveKind kind, PayloadKind payload, ComputePhase phase) {
                return collective_step({i, i + 1}, kind, GroupKind::tensor, payload, phase,
                                       model::gathered_key_bytes(graph, op, context_));
            };
            cuts.before(i, step(CollectiveKind::all_gather, PayloadKind::activation,
                                cuts.is_forward() ? cuts.phase() : ComputePhase::recompute));
            if (!cuts.is_forward())
                cuts.after(
                    i, step(CollectiveKind::reduce_scatter, PayloadKind::activation_gradient, cuts.phase()));
        }
    }

private:
    const model::CostContext context_;
};

}  // namespace

std::unique_ptr<LoweringPass> shared_heads(RankDraft& draft) {
    if (draft.plan.layout.tensor == 1) return nullptr;
    return std::make_unique<SharedHeads>(draft);
}

}  // namespace schedule
