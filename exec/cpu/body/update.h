// Optimizer steps, as PyTorch defines them (torch.optim.SGD, Adam, AdamW), and LAMB's as its paper does
// (arXiv 1904.00962, algorithm 2).
#pragma once

#include <cmath>
#include <cstdint>

#include "exec/cpu/body/eigen.h"
#include "exec/cpu/kernels.h"

namespace exec::cpu::INSTRUCTION_SET {
namespace {

void adam(std::int64_t count, const AdamStep& step, const float* gradient, float* parameter, float* first,
          float* second) {
    const float rate = step.learning_rate / step.correction1, reciprocal = 1.0f / std::sqrt(step.correction2);
    const float keep = 1.0f - step.learning_rate * step.weight_decay;
    const float pull = step.is_decoupled ? 0.0f : step.weight_decay;
    constexpr std::int64_t block = 2048;  // elements: the four arrays of a block fit in a first-level cache
    for (std::int64_t begin = 0; begin < count; begin += block) {
        const std::int64_t end = least(begin + block, count);
        // AdamW's decay is rounded before the update is subtracted, as in PyTorch: in one loop with the
        // update the compiler would fuse the two.
        if (step.is_decoupled)
            for (std::int64_t i = begin; i < end; ++i) parameter[i] *= keep;
        for (std::int64_t i = begin; i < end; ++i) {
            const float g = gradient[i] + pull * parameter[i];
            first[i] = step.beta1 * first[i] + step.rest1 * g;
            second[i] = step.beta2 * second[i] + step.rest2 * g * g;
            parameter[i] -= rate * first[i] / (std::sqrt(second[i]) * reciprocal + step.epsilon);
        }
    }
}

struct LambUpdate {
    explicit LambUpdate(const AdamStep& step)
        : mean(1.0f / step.correction1),
          deviation(1.0f / std::sqrt(step.correction2)),
          epsilon(step.epsilon),
          decay(step.weight_decay) {}
    float operator()(float x, float first, float second) const {
        return first * mean / (std::sqrt(second) * deviation + epsilon) + decay * x;
    }
    float mean, deviation, epsilon, decay;
};

// The sums of squares are added in `lanes` lanes, in an order that depends neither on the instruction set nor
// on the address of an array. A lane sums at most `terms` terms in fp32, which bounds its rounding error; the
// sums of the blocks are added in double precision.
void lamb_norms(std::int64_t count, const AdamStep& step, const float* gradient, const float* parameter,
                float* first, float* second, double* squares) {
    const LambUpdate update(step);
    constexpr std::int64_t lanes = 16, terms = 64, block = terms * lanes;
    const auto move = [&](std::int64_t i, float& values, float& updates) {
        first[i] = step.beta1 * first[i] + step.rest1 * gradient[i];
        second[i] = step.beta2 * second[i] + step.rest2 * gradient[i] * gradient[i];
        const float x = parameter[i], u = update(x, first[i], second[i]);
        values += x * x;
        updates += u * u;
    };
    for (std::int64_t begin = 0; begin < count; begin += block) {
        const std::int64_t end = least(begin + block, count), whole = begin + (end - begin) / lanes * lanes;
        float values[lanes] = {}, updates[lanes] = {};
        for (std::int64_t i = begin; i < whole; i += lanes)
            for (std::int64_t j = 0; j < lanes; ++j) move(i + j, values[j], updates[j]);
        for (std::int64_t i = whole; i < end; ++i) move(i, values[i - whole], updates[i - whole]);
        for (std::int64_t j = 0; j < lanes; ++j) {
            squares[0] += values[j];
            squares[1] += updates[j];
        }
    }
}

void lamb(std::int64_t count, const AdamStep& step, float rate, float* parameter, const float* first,
          const float* second) {
    const LambUpdate update(step);
    for (std::int64_t i = 0; i < count; ++i) parameter[i] -= rate * update(parameter[i], first[i], second[i]);
}

void sgd(std::int64_t count, float learning_rate, float momentum, float weight_decay, const float* gradient,
         float* parameter, float* velocity) {
    for (std::int64_t i = 0; i < count; ++i) {
        float g = gradient[i] + weight_decay * parameter[i];
        if (velocity) g = velocity[i] = momentum * velocity[i] + g;
        parameter[i] -= learning_rate * g;
    }
}

}  // namespace
}  // namespace exec::cpu::INSTRUCTION_SET
