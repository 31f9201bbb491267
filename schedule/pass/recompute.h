// Which operators run forward a second time before their backward.
#pragma once

#include <span>
#include <vector>

#include "model/model_fwd.h"
#include "schedule/plan/plan.h"

namespace schedule {

// Of the units of a stage, those that run again from their inputs: with recompute full all but the unit that
// reads the data and the unit that ends in the loss (Megatron-LM's --recompute-granularity full wraps
// transformer layers only), of which `layers` keeps the first so many; 0: all.
std::vector<char> recomputed_units(const model::ModelGraph& graph,
                                   std::span<const model::OperatorRange> units, Recompute recompute,
                                   int layers);
// Of a virtual stage of the plan.
std::vector<char> recomputed_units(const model::ModelGraph& graph,
                                   std::span<const model::OperatorRange> units, const Plan& plan, int stage);
// Of all units of the model, as if they were one stage.
std::vector<char> recomputed_units(const model::ModelGraph& graph, Recompute recompute);

// Is this operator run again by itself (selective: the attention cores, arXiv 2205.05198, section 5)? Its
// output is kept.
bool is_recomputed(const model::Operator& op, const Plan& plan);

// Consecutive operators of a unit that run again in its backward with recompute selective, beside the cores
// of attention. Nothing that they make is kept.
struct Rerun {
    model::OperatorRange operators;
    std::int32_t before = 0;  // the last operator of the unit that reads any of it: that one's backward
    bool has(std::int32_t op) const { return op >= operators.begin && op < operators.end; }
    // Everything that reads what they make, they themselves included.
    model::OperatorRange readers() const { return {operators.begin, before + 1}; }
};
// In order, none reading what another one makes: a dense feed-forward layer runs again with the norm before
// it (Transformer Engine fuses the two), a mixture with its where norms do. A norm is one that a residual
// connection leads around; what saves its own output alone (relu) is not run
// again, as nothing would be gained.
std::vector<Rerun> reruns(const model::ModelGraph& graph, model::OperatorRange unit, const Plan& plan);
// The modules of which a model has any, that plans of this kind could run again.
RecomputeModules modules_of(const model::ModelGraph& graph, const Plan& plan);

// Of a layer's operator, the part that runs again where attention and every other product of a layer are
// kept (torchtitan's operator-level checkpointing): of the products in the order q, k, v, output, gate, up,
// down the second, fourth and sixth; of the rest all.
double recomputed_share(const model::ModelGraph& graph, const model::Operator& op);

// The units of a stage: consecutive, covering it. A stage boundary is a unit boundary.
std::vector<model::OperatorRange> units_of(const model::ModelGraph& graph, model::OperatorRange stage);

}  // namespace schedule
