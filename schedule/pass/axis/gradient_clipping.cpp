// Gradient clipping: sums of squares of the gradients that each rank counts, added up over every group that
// divides gradients. The updates scale by what comes of it.
#include "schedule/pass/axis/axes.h"
#include "schedule/pass/axis/collectives.h"

namespace schedule {

namespace {

class GradientClipping : public LoweringPass {
public:
    using LoweringPass::LoweringPass;

    void end(const Ending& ending) override {
        if (!ending.is_of_step) return;
        Instruction norm;
        norm.kind = InstructionKind::gradient_norm;
        draft_.wait_for_gradients();
        std::uint32_t& last = draft_.frontier.last_step;
        last = draft_.list.append(norm);
        const auto add_up = [&](GroupKind group) {
            last = append_sum(draft_, group, PayloadKind::gradient_norm, core::Bytes(4), last);
        };
        const Plan& plan = draft_.plan;
        if (plan.divides_gradients_by() > 1)
            add_up(plan.divides_gradients_by() == plan.layout.expert ? GroupKind::expert_data
                                                                     : GroupKind::shard);
        if (plan.layout.tensor > 1) add_up(GroupKind::tensor);
        if (plan.layout.pipeline > 1) add_up(GroupKind::pipeline);
    }
};

}  // namespace

std::unique_ptr<LoweringPass> gradient_clipping(RankDraft& draft) {
    if (!draft.updates() || draft.plan.optimizer.gradient_clipping <= 0) return nullptr;
    return std::make_unique<GradientClipping>(draft);
}

}  // namespace schedule
