// Normalisation over the last dimension, and over samples and pixels.
#pragma once

#include <cmath>
#include <cstdint>

#include "exec/cpu/body/eigen.h"
#include "exec/cpu/kernels.h"

namespace exec::cpu::INSTRUCTION_SET {
namespace {

void layer_norm(std::int64_t rows, std::int64_t width, float epsilon, const float* x, const float* scale,
                const float* shift, float* y, float* statistics) {
    const ConstArray factor(scale, width);
    for (std::int64_t r = 0; r < rows; ++r) {
        const ConstArray in(x + r * width, width);
        MutableArray out(y + r * width, width);
        const float mean = in.mean();
        const float reciprocal = 1.0f / std::sqrt((in - mean).square().mean() + epsilon);
        statistics[2 * r] = mean;
        statistics[2 * r + 1] = reciprocal;
        if (shift) out = (in - mean) * reciprocal * factor + ConstArray(shift, width);
        else out = (in - mean) * reciprocal * factor;
    }
}

void layer_norm_backward(std::int64_t rows, std::int64_t width, const float* x, const float* statistics,
                         const float* scale, const float* dy, float* dx) {
    const ConstArray factor(scale, width);
    for (std::int64_t r = 0; r < rows; ++r) {
        const ConstArray in(x + r * width, width), gradient(dy + r * width, width);
        const float mean = statistics[2 * r], reciprocal = statistics[2 * r + 1];
        const float mean_gradient = (gradient * factor).mean();
        const float mean_product = (gradient * factor * (in - mean)).mean() * reciprocal;
        MutableArray(dx + r * width, width) +=
            reciprocal * (gradient * factor - mean_gradient - (in - mean) * (reciprocal * mean_product));
    }
}

void layer_norm_weights(std::int64_t rows, std::int64_t width, const float* x, const float* statistics,
                        const float* dy, float* dscale, float* dshift) {
    for (std::int64_t r = 0; r < rows; ++r) {
        const ConstArray gradient(dy + r * width, width);
        MutableArray(dscale, width) +=
            gradient * (ConstArray(x + r * width, width) - statistics[2 * r]) * statistics[2 * r + 1];
        if (dshift) MutableArray(dshift, width) += gradient;
    }
}

void rms_norm(std::int64_t rows, std::int64_t width, float epsilon, const float* x, const float* scale,
              float* y, float* statistics) {
    for (std::int64_t r = 0; r < rows; ++r) {
        const ConstArray in(x + r * width, width);
        statistics[r] = 1.0f / std::sqrt(in.square().mean() + epsilon);
        MutableArray(y + r * width, width) = in * statistics[r] * ConstArray(scale, width);
    }
}

void rms_norm_backward(std::int64_t rows, std::int64_t width, const float* x, const float* statistics,
                       const float* scale, const float* dy, float* dx) {
    for (std::int64_t r = 0; r < rows; ++r) {
        const ConstArray in(x + r * width, width), gradient(dy + r * width, width), factor(scale, width);
        const float reciprocal = statistics[r];
        const float mean_product = (gradient * factor * in).mean() * reciprocal * reciprocal;
        MutableArray(dx + r * width, width) += reciprocal * (gradient * factor - in * mean_product);
    }
}

void rms_norm_weights(std::int64_t rows, std::int64_t width, const float* x, const float* statistics,
                      const float* dy, float* dscale) {
    for (std::int64_t r = 0; r < rows; ++r)
        MutableArray(dscale, width) +=
            ConstArray(dy + r * width, width) * ConstArray(x + r * width, width) * statistics[r];
}

void batch_norm(const ImageShape& shape, float epsilon, const float* x, const float* scale,
                const float* shift, float* y, float* statistics) {
    const std::int64_t pixels = shape.rows * shape.columns, stride = shape.channels * pixels;
    const float count = shape.samples * pixels;
    for (std::int64_t c = 0; c < shape.channels; ++c) {
        float sum = 0, squares = 0;
        for (std::int64_t s = 0; s < shape.samples; ++s)
            sum += ConstArray(x + s * stride + c * pixels, pixels).sum();
        const float mean = sum / count;
        for (std::int64_t s = 0; s < shape.samples; ++s)
            squares += (ConstArray(x + s * stride + c * pixels, pixels) - mean).square().sum();
        const float reciprocal = 1.0f / std::sqrt(squares / count + epsilon);
        statistics[2 * c] = mean;
        statistics[2 * c + 1] = reciprocal;
        for (std::int64_t s = 0; s < shape.samples; ++s) {
            const std::int64_t at = s * stride + c * pixels;
            MutableArray(y + at, pixels) =
                (ConstArray(x + at, pixels) - mean) * (reciprocal * scale[c]) + shift[c];
        }
    }
}

void batch_norm_sums(const ImageShape& shape, std::int64_t channel, const float* x, const float* statistics,
                     const float* dy, float& sum, float& product) {
    const std::int64_t pixels = shape.rows * shape.columns, stride = shape.channels * pixels;
    sum = product = 0;
    for (std::int64_t s = 0; s < shape.samples; ++s) {
        const std::int64_t at = s * stride + channel * pixels;
        const ConstArray gradient(dy + at, pixels);
        sum += gradient.sum();
        product += (gradient * (ConstArray(x + at, pixels) - statistics[2 * channel])).sum() *
                   statistics[2 * channel + 1];
    }
}

void batch_norm_backward(const ImageShape& shape, const float* x, const float* statistics, const float* scale,
                         const float* dy, float* dx) {
    const std::int64_t pixels = shape.rows * shape.columns, stride = shape.channels * pixels;
    const float count = shape.samples * pixels;
    for (std::int64_t c = 0; c < shape.channels; ++c) {
        float sum, product;
        batch_norm_sums(shape, c, x, statistics, dy, sum, product);
        const float mean = statistics[2 * c], reciprocal = statistics[2 * c + 1];
        for (std::int64_t s = 0; s < shape.samples; ++s) {
            const std::int64_t at = s * stride + c * pixels;
            MutableArray(dx + at, pixels) +=
                scale[c] * reciprocal *
                (ConstArray(dy + at, pixels) - sum / count -
                 (ConstArray(x + at, pixels) - mean) * (reciprocal * product / count));
        }
    }
}

void batch_norm_weights(const ImageShape& shape, const float* x, const float* statistics, const float* dy,
                        float* dscale, float* dshift) {
    for (std::int64_t c = 0; c < shape.channels; ++c) {
        float sum, product;
        batch_norm_sums(shape, c, x, statistics, dy, sum, product);
        dscale[c] += product;
        dshift[c] += sum;
    }
}

}  // namespace
}  // namespace exec::cpu::INSTRUCTION_SET
