// Mixtures whose experts are not divided over the tensor-parallel group.
#pragma once

#include "core/unsupported.h"
#include "model/model_graph.h"

namespace model {

// Why the experts of a model cannot stay whole on tensor-parallel ranks.
std::optional<core::Unsupported> whole_experts_unsupported(const ModelGraph& graph);
// The graph with its mixtures outside parallel regions: a tensor-parallel rank routes its share of the tokens
// (sequence parallelism), and experts are spread over the group as over the data axis (Megatron-LM's
// --expert-tensor-parallel-size 1; arXiv 2504.14960, section 3). Regions without other work become views;
// what a shared expert beside them makes is summed over the group before it is added. Operators, parameters,
// tensors and units keep their numbers. `whole_experts_unsupported` has nothing against it.
ModelGraph with_whole_experts(const ModelGraph& graph);

}  // namespace model
