// What a pass of a micro-batch through a stage runs, as lowering cuts it, with nothing of data parallelism,
// offload and the step's end: for who prices stages before there is a Program.
#pragma once

#include <memory>
#include <vector>

#include "schedule/pass/lowering_pass.h"

namespace schedule {

class StageRecipes {
public:
    // `graph` outlives it. The plan is alike for all stages (Plan::of_stage).
    StageRecipes(const Plan& plan, const model::ModelGraph& graph, model::OperatorRange stage);

    // `phase` is forward, backward, backward_input or backward_weight.
    Recipe of(ComputePhase phase) const;

private:
    Program program_;
    Schedule order_;
    RankDraft draft_;
    std::vector<std::unique_ptr<LoweringPass>> passes_;
    RecipeContext context_;
};

}  // namespace schedule
