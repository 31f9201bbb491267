// Kernels of one attention operator, by implementation.
#pragma once

#include "model/operators/cost.h"

namespace model {

void append_attention_kernels(std::vector<Kernel>& list, const ModelGraph& graph, const Operator& op,
                              Phase phase, const CostContext& context);

// Of a ring (passes_keys) one piece; forward or backward_input.
std::vector<Kernel> attention_piece_kernels(const ModelGraph& graph, const Operator& op, Phase phase,
                                            const CostContext& context, int piece);

}  // namespace model
