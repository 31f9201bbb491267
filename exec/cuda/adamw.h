// One AdamW update as a single kernel: every state is read and written once, 28 bytes a parameter in fp32.
#pragma once

#include "exec/cuda/buffer.h"

namespace exec::cuda {

// Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019, algorithm 2, with the epsilon where PyTorch's torch.optim.AdamW has it.
struct AdamWStep {
    float learning_rate = 1e-3f;
    float beta1 = 0.9f;
    float beta2 = 0.999f;
    float epsilon = 1e-8f;
    float weight_decay = 0.01f;
    int step = 1;  // counts from 1
};

// Starts the update of `parameters`, `first_moment` and `second_moment` from `gradients` (all of one size) on the default stream and returns.
// A failed launch throws core::MachineError.
void update(FloatBuffer& parameters, const FloatBuffer& gradients, FloatBuffer& first_moment, FloatBuffer& second_moment, const AdamWStep& step);

}  // namespace exec::cuda
