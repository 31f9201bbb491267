#include "exec/cuda/adamw.h"

#include <algorithm>
#include <cmath>

#include "core/diagnostics.h"
#include "exec/cuda/check.cuh"

namespace exec::cuda {

namespace {

struct Factors {
    float decay;  // 1 - learning rate * weight decay
    float beta1, beta2;
    float step_size;          // learning rate / (1 - beta1^t)
    float second_correction;  // 1 / sqrt(1 - beta2^t)
    float epsilon;
};

__global__ void adamw_kernel(float* __restrict__ parameters, const float* __restrict__ gradients, float* __restrict__ first_moment,
                             float* __restrict__ second_moment, std::size_t count, Factors factors) {
    const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
    for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
        const float gradient = gradients[i];
        const float first = factors.beta1 * first_moment[i] + (1.0f - factors.beta1) * gradient;
        const float second = factors.beta2 * second_moment[i] + (1.0f - factors.beta2) * gradient * gradient;
        first_moment[i] = first;
        second_moment[i] = second;
        parameters[i] = parameters[i] * factors.decay - factors.step_size * first / (sqrtf(second) * factors.second_correction + factors.epsilon);
    }
}

}  // namespace

void update(FloatBuffer& parameters, const FloatBuffer& gradients, FloatBuffer& first_moment, FloatBuffer& second_moment, const AdamWStep& step) {
    const std::size_t count = parameters.size();
    core::require(gradients.size() == count && first_moment.size() == count && second_moment.size() == count, "AdamW's four arrays have one size");
    core::require(step.step >= 1, "AdamW counts its steps from 1");
    if (count == 0) return;
    // In double on the host: 1 - beta2^t loses half of its digits in float when t is small.
    Factors factors;
    factors.decay = static_cast<float>(1.0 - static_cast<double>(step.learning_rate) * step.weight_decay);
    factors.beta1 = step.beta1;
    factors.beta2 = step.beta2;
    factors.step_size = static_cast<float>(step.learning_rate / (1.0 - std::pow(static_cast<double>(step.beta1), step.step)));
    factors.second_correction = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(static_cast<double>(step.beta2), step.step)));
    factors.epsilon = step.epsilon;
    constexpr unsigned threads = 256;
    // The loop in the kernel takes what a grid of this size leaves: 4,096 blocks fill every GPU there is several times over.
    const unsigned blocks = static_cast<unsigned>(std::min<std::size_t>((count + threads - 1) / threads, 4096));
    adamw_kernel<<<blocks, threads>>>(parameters.data(), gradients.data(), first_moment.data(), second_moment.data(), count, factors);
    check(cudaGetLastError(), "launch of adamw_kernel");
}

}  // namespace exec::cuda
