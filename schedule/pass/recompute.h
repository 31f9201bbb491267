// Which operators run forward a second time before their backward.
#pragma once

#include <vector>

#include "model/model_fwd.h"
#include "schedule/plan/plan.h"

namespace schedule {

// Recompute full: is this unit run again from its inputs? The unit that reads the data and the unit that ends
// in the loss are not: Megatron-LM's --recompute-granularity full wraps transformer layers only.
bool is_recomputed(const model::ModelGraph& graph, const model::Unit& unit, Recompute recompute);

// Is this operator run again by itself (selective: the attention cores, arXiv 2205.05198, section 5)?
bool is_recomputed(const model::Operator& op, Recompute recompute);

// Of a layer's operator, the part that runs again where attention and every other product of a layer are
// kept (torchtitan's operator-level checkpointing): of the products in the order q, k, v, output, gate, up,
// down the second, fourth and sixth; of the rest all.
double recomputed_share(const model::ModelGraph& graph, const model::Operator& op);

// The units of a stage: consecutive, covering it. A stage boundary is a unit boundary.
std::vector<model::OperatorRange> units_of(const model::ModelGraph& graph, model::OperatorRange stage);

}  // namespace schedule
