// The mean of the loss over all ranks: over the ends of both directions' pipelines, where there are two, and
// over the replicas.
#include "schedule/pass/axis/axes.h"
#include "schedule/pass/axis/collectives.h"

namespace schedule {

namespace {

class Loss : public LoweringPass {
public:
    using LoweringPass::LoweringPass;

    void finish(RecipeDraft& recipe) override {
        if (recipe.is_forward() && draft_.program.is_last_stage(recipe.context().stage))
            recipe.append({{this}});
    }
    void perform(const Hook&, const StagePass&) override { ready_ = draft_.frontier.last_step; }

    void end(const Ending& ending) override {
        if (!ending.is_of_step || ready_ == no_instruction) return;
        const ParallelLayout& layout = draft_.plan.layout;
        const auto add_up = [&](GroupKind group) {
            ready_ = append_sum(draft_, group, PayloadKind::loss, core::Bytes(4), ready_);
        };
        if (draft_.program.directions > 1 && layout.pipeline > 1) add_up(GroupKind::tied_stages);
        if (layout.data > 1) add_up(GroupKind::data);
    }

private:
    std::uint32_t ready_ = no_instruction;  // the instruction that made it; none without the last stage
};

}  // namespace

std::unique_ptr<LoweringPass> loss(RankDraft& draft) { return std::make_unique<Loss>(draft); }

}  // namespace schedule
