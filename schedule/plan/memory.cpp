#include "schedule/plan/memory.h"

#include <array>
#include <map>
#include <optional>
#include <utility>

#include "model/repetition.h"
#include "schedule/pass/liveness.h"

namespace schedule {

ActivationFootprint activation_footprint(const model::ModelGraph& graph, model::OperatorRange stage,
                                         const Plan& plan, bool is_forward_only) {
    return StageLiveness(graph, stage, plan, is_forward_only).footprint();
}

ActivationFootprint activation_footprint(const model::ModelGraph& graph, model::OperatorRange stage,
                                         const Plan& plan, const model::WorkspaceRules& workspace,
                                         bool is_forward_only) {
    return StageLiveness(graph, stage, plan, is_forward_only, &workspace).footprint();
}

std::vector<ActivationFootprint> activation_footprints(const model::ModelGraph& graph,
                                                       const std::vector<model::OperatorRange>& stages,
                                                       const Plan& plan,
                                                       const model::WorkspaceRules* workspace,
                                                       bool is_forward_only, model::Repetition* repetition) {
    std::vector<ActivationFootprint> footprints;
    std::map<std::array<std::int32_t, 3>, std::size_t> first;  // of those alike
    for (std::size_t s = 0; s < stages.size(); ++s) {
        const model::OperatorRange like = repetition ? repetition->first_like(stages[s]) : stages[s];
        const std::int32_t layers = plan.recomputes_by_stage() ? plan.layers_again(std::int64_t(s)) : 0;
        const auto [known, is_new] = first.try_emplace({like.begin, like.end, layers}, s);
        if (is_new) {
            const auto own = plan.recomputes_by_stage() ? std::optional(plan.of_stage(int(s))) : std::nullopt;
            footprints.push_back(
                StageLiveness(graph, stages[s], own ? *own : plan, is_forward_only, workspace).footprint());
            continue;
        }
        footprints.push_back(footprints[known->second]);
        const std::int32_t further = stages[s].begin - stages[known->second].begin;
        for (ActivationFootprint::UnitSaved& unit : footprints.back().offloadable)
            unit.operators = {unit.operators.begin + further, unit.operators.end + further};
    }
    return footprints;
}

StateElements state_elements(const model::ModelGraph& graph, const std::vector<model::OperatorRange>& stages,
                             const Plan& plan) {
    const model::CostContext context = plan.cost_context();
    std::vector<char> is_counted(graph.parameters.size(), 0);
    StateElements all;
    for (const model::OperatorRange stage : stages)
        for (std::int32_t i = stage.begin; i < stage.end; ++i)
            for (const model::ParameterId parameter : graph.operators[i].parameters) {
                char& counted = is_counted[parameter.index];
                double& elements =
                    graph.parameter(parameter).is_expert && plan.layout.expert > 1 ? all.experts : all.dense;
                if (!counted) elements += model::parameter_elements(graph, parameter, context);
                counted = 1;
            }
    return all;
}

StateFootprint state_footprint(const StateElements& elements, const Plan& plan) {
    const auto share = [&](Sharding what) {
        return plan.sharding >= what
                   ? elements.dense / plan.pieces(false) + elements.experts / plan.pieces(true)
                   : elements.dense + elements.experts;
    };
    StateFootprint state;
    if (!plan.keeps_parameters_on_hosts()) {
        state.parameters = share(Sharding::parameters) * core::size_of(plan.precision.parameters);
        state.gradients = share(Sharding::gradients) * core::size_of(plan.precision.gradients);
    }
    state.optimizer = share(Sharding::optimizer) * optimizer_bytes_on_device(plan);
    state.on_host = share(Sharding::optimizer) * optimizer_bytes_on_host(plan);
    return state;
}

StateFootprint state_footprint(const model::ModelGraph& graph,
                               const std::vector<model::OperatorRange>& stages, const Plan& plan) {
    return state_footprint(state_elements(graph, stages, plan), plan);
}

StateFootprint state_footprint(const model::ModelGraph& graph, model::OperatorRange stage, const Plan& plan) {
    return state_footprint(graph, std::vector<model::OperatorRange>{stage}, plan);
}

}  // namespace schedule
