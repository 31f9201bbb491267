// Kernels of one attention operator, by implementation.
#pragma once

#include "model/operators/cost.h"

namespace model {

void append_attention_kernels(std::vector<Kernel>& list, const ModelGraph& graph, const Operator& op,
                              Phase phase, const CostContext& context);

}  // namespace model
