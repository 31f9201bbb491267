// Workspace: memory that an operator's kernels hold only while they run, which an eager framework allocates
// beside inputs, outputs, gradients and saved tensors.
#pragma once

#include "core/units.h"
#include "model/operators/cost.h"

namespace model {

// Habits of a framework that decide how much workspace its kernels hold.
struct WorkspaceRules {
    // Autograd computes the gradient of a weight into a tensor of its own and adds it to the sum afterwards;
    // false: the product accumulates in place (Megatron-LM's gradient accumulation fusion).
    bool has_own_weight_gradients = true;
    // The loss works on one fp32 copy of the logits, which becomes the saved softmax and then their gradient
    // (Megatron-LM's vocab-parallel cross entropy).
    bool has_in_place_loss = false;
    // Selective recomputation keeps the outputs of attention and of every other product of a layer and runs
    // all else again, as it does in FrameworkTraits.
    bool recomputes_alternate_products = false;
};

// Bytes at the moment of the operator when most is held. Attention that materialises scores: the raw scores
// beside the probabilities, and in backward the gradients of both. FlashAttention: an fp32 gradient of the
// queries; in a ring what its pieces found. The loss: an fp32 copy of the logits, and in backward their fp32
// gradient. Weights: their gradient in the compute type.
core::Bytes kernel_workspace(const ModelGraph& graph, OperatorId op, Phase phase, const CostContext& context,
                             const WorkspaceRules& rules);

}  // namespace model
