// A model as a plan lays it out.
#pragma once

#include <optional>

#include "model/model_graph.h"
#include "schedule/plan/plan.h"
#include "schedule/plan/sequence_cut.h"

namespace schedule {

// Where experts stay whole on tensor-parallel ranks the graph is model::with_whole_experts of the model, of
// which there is nothing against it; else the model itself, which must outlive this. A graph that is laid out
// already stays as it is. The same operators, tensors, parameters and units under the same numbers.
class PlannedGraph {
public:
    PlannedGraph(const Plan& plan, const model::ModelGraph& graph);

    const model::ModelGraph& operator*() const { return made_ ? *made_ : given_; }
    const model::ModelGraph* operator->() const { return &**this; }

private:
    const model::ModelGraph& given_;
    std::optional<model::ModelGraph> made_;
};

// Is the graph what a PlannedGraph of the plan and its model is? With one tensor rank both forms are the
// same.
inline bool is_laid_out(const model::ModelGraph& graph, const Plan& plan) {
    return plan.layout.tensor == 1 || graph.has_whole_experts() == plan.layout.spreads_experts_over_tensor();
}

// Reports at the key that can mend it what keeps a plan from spreading the experts of this model. False where
// they cannot stay whole, and so nothing can be laid out.
bool check_experts(const Plan& plan, const model::ModelGraph& model, const ReportError& error);

}  // namespace schedule
