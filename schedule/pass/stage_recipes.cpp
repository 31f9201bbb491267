#include "schedule/pass/stage_recipes.h"

#include "core/errors.h"
#include "schedule/pass/recompute.h"

namespace schedule {

namespace {

Program program_of_stage(const Plan& plan, model::OperatorRange stage) {
    Program program;
    program.plan = plan;
    program.plan.sharding = Sharding::none;
    program.plan.offload = Offload::none;
    program.stages.resize(1);
    program.stages[0].operators = stage;
    return program;
}

Schedule order_of_one_rank() {
    Schedule order;
    order.actions.resize(1);
    return order;
}

}  // namespace

StageRecipes::StageRecipes(const Plan& plan, const model::ModelGraph& graph, model::OperatorRange stage)
    : program_(program_of_stage(plan, stage)),
      order_(order_of_one_rank()),
      draft_(program_, graph, order_),
      passes_(lowering_passes(draft_)),
      context_{.operators = stage, .units = units_of(graph, stage)} {
    core::require(!plan.recomputes_by_stage(), "recipes are of a stage whose recomputation is known");
    context_.runs_again = recomputed_units(graph, context_.units, plan.recompute, plan.recompute_layers);
}

Recipe StageRecipes::of(ComputePhase phase) const {
    RecipeContext context = context_;
    context.phase = phase;
    return RecipeDraft(context, passes_).make();
}

}  // namespace schedule
