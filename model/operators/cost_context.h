// How a graph is run, as far as shapes, kernels and costs depend on it.
#pragma once

#include <cstdint>

#include "core/data_type.h"

namespace model {

enum class Phase { forward, backward_input, backward_weight };

enum class AttentionImplementation { unfused, fused_softmax, flash };

// How ranks that divide samples attend to each other's tokens.
// all_gather: each gathers the keys and values of all. all_to_all: before an attention each gives the others
// what it has of some heads, and gets what they have of its own (DeepSpeed-Ulysses, arXiv 2309.14509). ring:
// keys and values pass from rank to rank while each attends to those that it has (Ring Attention, arXiv
// 2310.01889; Megatron-LM's p2p).
enum class ContextCommunication { all_gather, all_to_all, ring };

// How the graph is run: what decides shapes and kernels beside the graph itself.
struct CostContext {
    std::int64_t micro_batch = 1;  // samples
    int tensor_parallel = 1;
    bool sequence_parallel = false;
    int expert_parallel = 1;   // ranks over which the experts of a mixture are spread
    int context_parallel = 1;  // every sample's tokens are divided over this many ranks
    ContextCommunication context_communication = ContextCommunication::all_gather;  // of those
    core::DataType compute = core::DataType::bf16;  // of activations and matrix products
    AttentionImplementation attention = AttentionImplementation::flash;
    // false: as PyTorch runs it, on an fp32 copy of the logits with the log-softmax kept; true: one pass over
    // the logits each way, nothing kept beside them.
    bool fused_cross_entropy = false;
    // A residual addition takes the dropout before it into its own kernel (Megatron-LM's
    // bias_dropout_add_fusion).
    bool fused_dropout_add = false;
    // Biases of linear layers by kernels of their own (PyTorch before 1.12 for inputs of three dimensions),
    // not in the product's epilogue.
    bool separate_bias = false;
    // Batch norm takes the relu, and the addition before it, into its own kernels (NHWC kernels of cuDNN 7.4
    // and later, as MXNet uses them).
    bool fused_norm_activation = false;
    // An addition applies the relu after it (code made for chains of elementwise operations).
    bool fused_add_activation = false;
    // The input gradient of a convolution is added to what is there (cuDNN's beta = 1).
    bool adds_in_convolution = false;
    // Experts keep what goes into their activation and not what comes out, which backward_input makes again
    // for backward_weight (Megatron-LM's --recompute-modules moe_act).
    bool remakes_expert_activation = false;
    // Mixtures route by products with one-hot masks over groups of this many tokens (GShard, arXiv
    // 2006.16668), not by gathering rows; 0 = gathering.
    std::int64_t dense_dispatch_group = 0;

    bool communicates(ContextCommunication how) const {
        return context_parallel > 1 && context_communication == how;
    }
};

}  // namespace model
