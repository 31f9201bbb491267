// Flash attention of cuDNN (arXiv 2307.08691 and NVIDIA's own kernels on Hopper), through the header-only
// cudnn-frontend where that is found.
#pragma once

#include <cudnn.h>

#include <map>
#include <memory>
#include <vector>

#include "exec/cuda/device/tuning/tuner.cuh"
#include "exec/cuda/device/tuning/workspace.cuh"
#include "exec/cuda/machine.h"

namespace exec::cuda {

class FusedAttention {
public:
    // `workspace` is shared with other calls of the same stream. Where `tuner` measures, the fastest of
    // cuDNN's engines is taken, not the first that it proposes, and its name is kept.
    FusedAttention(cudnnHandle_t handle, int compute_major, Workspace& workspace, Tuner& tuner);
    ~FusedAttention();
    FusedAttention(const FusedAttention&) = delete;
    FusedAttention& operator=(const FusedAttention&) = delete;

    // Why the shape is not taken, in both directions: cuDNN's words, or that it is not to be had.
    std::optional<core::Unsupported> unsupported(Type type, const FusedAttentionShape& shape) const;
    void forward(Stream stream, Type type, const FusedAttentionShape& shape,
                 const FusedAttentionArrays& arrays);
    void backward(Stream stream, Type type, const FusedAttentionShape& shape,
                  const FusedAttentionArrays& arrays, const FusedAttentionGradients& gradients);

private:
    struct Graphs;
    const cudnnHandle_t handle_;
    const int compute_major_;
    Workspace& workspace_;
    Tuner& tuner_;
    std::unique_ptr<Graphs> graphs_;
};

}  // namespace exec::cuda
