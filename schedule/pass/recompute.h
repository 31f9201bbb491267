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
// Of all units of the model, as if they were one stage.
std::vector<char> recomputed_units(const model::ModelGraph& graph, Recompute recompute);

// Is this operator run again by itself (selective: the attention cores, arXiv 2205.05198, section 5)?
bool is_recomputed(const model::Operator& op, Recompute recompute);

// Of a layer's operator, the part that runs again where attention and every other product of a layer are
// kept (torchtitan's operator-level checkpointing): of the products in the order q, k, v, output, gate, up,
// down the second, fourth and sixth; of the rest all.
double recomputed_share(const model::ModelGraph& graph, const model::Operator& op);

// The units of a stage: consecutive, covering it. A stage boundary is a unit boundary.
std::vector<model::OperatorRange> units_of(const model::ModelGraph& graph, model::OperatorRange stage);

}  // namespace schedule
