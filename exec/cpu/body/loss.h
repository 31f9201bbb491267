// Cross-entropy over logits. A rank may hold only a part of the classes.
#pragma once

#include <cstdint>
#include <limits>

#include "exec/cpu/body/eigen.h"
#include "exec/cpu/kernels.h"

namespace exec::cpu::INSTRUCTION_SET {
namespace {

void loss_statistics(std::int64_t rows, std::int64_t columns, std::int64_t valid, std::int64_t first_class,
                     const float* logits, const std::int64_t* labels, float* statistics) {
    for (std::int64_t r = 0; r < rows; ++r) {
        const ConstArray row(logits + r * columns, valid);
        const float maximum = valid > 0 ? row.maxCoeff() : -std::numeric_limits<float>::max();
        const std::int64_t label = labels[r] - first_class;
        statistics[3 * r] = maximum;
        statistics[3 * r + 1] = valid > 0 ? (row - maximum).exp().sum() : 0.0f;
        statistics[3 * r + 2] = label >= 0 && label < valid ? logits[r * columns + label] : 0.0f;
    }
}

void softmax(std::int64_t rows, std::int64_t columns, std::int64_t valid, const float* logits,
             const float* log_sums, float* p) {
    for (std::int64_t r = 0; r < rows; ++r) {
        MutableArray(p + r * columns, valid) = (ConstArray(logits + r * columns, valid) - log_sums[r]).exp();
        for (std::int64_t c = valid; c < columns; ++c) p[r * columns + c] = 0;
    }
}

void cross_entropy_backward(std::int64_t rows, std::int64_t columns, std::int64_t first_class,
                            std::int64_t valid, float factor, const float* p, const std::int64_t* labels,
                            float* dlogits) {
    for (std::int64_t r = 0; r < rows; ++r) {
        const float* probability = p + r * columns;
        float* gradient = dlogits + r * columns;
        for (std::int64_t c = 0; c < valid; ++c) gradient[c] += factor * probability[c];
        const std::int64_t label = labels[r] - first_class;
        if (label >= 0 && label < valid) gradient[label] -= factor;
    }
}

}  // namespace
}  // namespace exec::cpu::INSTRUCTION_SET
