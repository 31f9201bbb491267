// Cost of one operator, counted exactly and without any device: kernels with shapes, FLOPs and bytes per
// phase, and memory kept for backward. FLOPs are 2 per multiply-add. The device's price of a kernel is in
// sim/cost.
#pragma once

#include <cstdint>
#include <vector>

#include "model/model_graph.h"
#include "model/operators/cost_context.h"

namespace model {

enum class KernelKind { matrix_product, convolution, attention, memory };

// One kernel launch. Matrix products: `batch` products of m x k by k x n. Attention: batch = samples * heads,
// m = queries, n = keys, k = head dimension; its FLOPs are of the full square also when causal: a device that
// skips the masked half divides by two. Convolutions: as implicit matrix product (forward: m = output pixels,
// n = output channels, k = input channels * kernel area; backward_input: m = input pixels; backward_weight: k
// = output pixels). FLOPs are of products, convolutions and attention; everything else is priced by its
// bytes.
struct Kernel {
    KernelKind kind = KernelKind::memory;
    std::int64_t batch = 1, m = 0, n = 0, k = 0;
    std::int64_t alignment = 8;  // matrix products: elements; largest power of two up to 8 that divides the
                                 // rows of all operands, as they lie in memory
    bool is_causal = false;
    double visible_share =
        1;  // attention: share of the scores that a mask leaves, for kernels that skip masked ones
    core::Flops flops;
    core::Bytes read, written;
    std::int64_t kernel_y = 0, kernel_x = 0, stride = 0;  // convolutions
    const char* what = "";  // static text for reports: "linear", "softmax", "norm", ...
};

// Kernels an eager framework launches for this operator in this phase (empty for views and identities).
std::vector<Kernel> kernels(const ModelGraph& graph, OperatorId op, Phase phase, const CostContext& context);

// Memory that forward keeps until backward, as tensors of the graph (shared between operators: count each
// once) plus bytes of the operator's own.
struct SavedForBackward {
    std::vector<TensorId> tensors;
    core::Bytes saved_context;         // softmax statistics, masks, norms' mean and deviation
    core::Bytes recomputable_context;  // the part of `saved_context` that selective recomputation drops
                                       // (attention scores)
    core::Bytes late_context;  // also its own, but made by backward_input for backward_weight; forward needs
                               // as much for a moment
};
SavedForBackward saved_for_backward(const ModelGraph& graph, OperatorId op, const CostContext& context);
// Is the gradient of this tensor written over its values? That of logits is, where the loss takes one pass
// over them each way (fused_cross_entropy) and nothing else reads them (llm.c's fused_classifier, Liger).
bool gradient_overwrites(const ModelGraph& graph, TensorId tensor, const CostContext& context);

// Bytes of a tensor on one rank (split and sequence-parallel shares applied).
core::Bytes tensor_bytes(const ModelGraph& graph, TensorId tensor, const CostContext& context);
// Elements of a parameter on one rank.
std::int64_t parameter_elements(const ModelGraph& graph, ParameterId parameter, const CostContext& context);

struct PhaseCost {
    core::Flops flops;
    core::Bytes read, written;
    int kernels = 0;
};
PhaseCost phase_cost(const ModelGraph& graph, OperatorRange range, Phase phase, const CostContext& context);

// Model FLOPs of one sample, forward (the numerator of MFU is 3x this; full attention square unless causal
// skipping is asked for).
core::Flops forward_flops_per_sample(const ModelGraph& graph);

}  // namespace model
