// Convolution as a matrix product over unfolded pixels (im2col), and pooling.
#pragma once

#include <cstdint>

#include "exec/cpu/body/eigen.h"
#include "exec/cpu/body/product.h"
#include "exec/cpu/kernels.h"

namespace exec::cpu::INSTRUCTION_SET {
namespace {

std::int64_t unfolded_rows(const ImageShape& s) { return s.channels * s.kernel_y * s.kernel_x; }

// columns[c, ky, kx][oy, ox] = x[c][oy stride + ky - padding][ox stride + kx - padding], zero outside.
void unfold(const ImageShape& s, const float* x, float* columns) {
    for (std::int64_t c = 0; c < s.channels; ++c)
        for (std::int64_t ky = 0; ky < s.kernel_y; ++ky)
            for (std::int64_t kx = 0; kx < s.kernel_x; ++kx)
                for (std::int64_t oy = 0; oy < s.out_rows; ++oy) {
                    const std::int64_t y = oy * s.stride + ky - s.padding;
                    for (std::int64_t ox = 0; ox < s.out_columns; ++ox) {
                        const std::int64_t at = ox * s.stride + kx - s.padding;
                        const bool is_inside = y >= 0 && y < s.rows && at >= 0 && at < s.columns;
                        *columns++ = is_inside ? x[(c * s.rows + y) * s.columns + at] : 0.0f;
                    }
                }
}

// x += the transpose of unfold: each column element is added to the pixel that it was copied from.
void fold(const ImageShape& s, const float* columns, float* x) {
    for (std::int64_t c = 0; c < s.channels; ++c)
        for (std::int64_t ky = 0; ky < s.kernel_y; ++ky)
            for (std::int64_t kx = 0; kx < s.kernel_x; ++kx)
                for (std::int64_t oy = 0; oy < s.out_rows; ++oy) {
                    const std::int64_t y = oy * s.stride + ky - s.padding;
                    for (std::int64_t ox = 0; ox < s.out_columns; ++ox, ++columns) {
                        const std::int64_t at = ox * s.stride + kx - s.padding;
                        if (y >= 0 && y < s.rows && at >= 0 && at < s.columns)
                            x[(c * s.rows + y) * s.columns + at] += *columns;
                    }
                }
}

void convolution(const ImageShape& s, const float* x, const float* weight, const float* bias, float* y) {
    const std::int64_t depth = unfolded_rows(s), pixels = s.out_rows * s.out_columns;
    float* columns = scratch(0, depth * pixels);
    for (std::int64_t n = 0; n < s.samples; ++n) {
        unfold(s, x + n * s.channels * s.rows * s.columns, columns);
        float* out = y + n * s.out_channels * pixels;
        product(false, false, s.out_channels, pixels, depth, 1, weight, depth, columns, pixels, out, pixels,
                false);
        if (!bias) continue;
        for (std::int64_t c = 0; c < s.out_channels; ++c) MutableArray(out + c * pixels, pixels) += bias[c];
    }
}

void convolution_backward(const ImageShape& s, const float* weight, const float* dy, float* dx) {
    const std::int64_t depth = unfolded_rows(s), pixels = s.out_rows * s.out_columns;
    float* columns = scratch(0, depth * pixels);
    for (std::int64_t n = 0; n < s.samples; ++n) {
        product(true, false, depth, pixels, s.out_channels, 1, weight, depth,
                dy + n * s.out_channels * pixels, pixels, columns, pixels, false);
        fold(s, columns, dx + n * s.channels * s.rows * s.columns);
    }
}

void convolution_weights(const ImageShape& s, const float* x, const float* dy, float* dweight, float* dbias) {
    const std::int64_t depth = unfolded_rows(s), pixels = s.out_rows * s.out_columns;
    float* columns = scratch(0, depth * pixels);
    for (std::int64_t n = 0; n < s.samples; ++n) {
        const float* gradient = dy + n * s.out_channels * pixels;
        unfold(s, x + n * s.channels * s.rows * s.columns, columns);
        product(false, true, s.out_channels, depth, pixels, 1, gradient, pixels, columns, pixels, dweight,
                depth, true);
        if (!dbias) continue;
        for (std::int64_t c = 0; c < s.out_channels; ++c)
            dbias[c] += ConstArray(gradient + c * pixels, pixels).sum();
    }
}

void max_pool(const ImageShape& s, const float* x, float* y, std::int64_t* positions) {
    for (std::int64_t plane = 0; plane < s.samples * s.channels; ++plane) {
        const float* in = x + plane * s.rows * s.columns;
        for (std::int64_t oy = 0; oy < s.out_rows; ++oy)
            for (std::int64_t ox = 0; ox < s.out_columns; ++ox) {
                std::int64_t best = -1;
                for (std::int64_t py = greatest(0, oy * s.stride - s.padding);
                     py < least(s.rows, oy * s.stride - s.padding + s.kernel_y); ++py)
                    for (std::int64_t px = greatest(0, ox * s.stride - s.padding);
                         px < least(s.columns, ox * s.stride - s.padding + s.kernel_x); ++px)
                        if (best < 0 || in[py * s.columns + px] > in[best]) best = py * s.columns + px;
                *y++ = in[best];
                *positions++ = best;
            }
    }
}

void max_pool_backward(const ImageShape& s, const std::int64_t* positions, const float* dy, float* dx) {
    const std::int64_t pixels = s.out_rows * s.out_columns;
    for (std::int64_t plane = 0; plane < s.samples * s.channels; ++plane)
        for (std::int64_t i = 0; i < pixels; ++i)
            dx[plane * s.rows * s.columns + positions[plane * pixels + i]] += dy[plane * pixels + i];
}

// Pixels of the padding count as zeros in the average, as in PyTorch's default.
void average_pool(const ImageShape& s, const float* x, float* y) {
    const float share = 1.0f / (s.kernel_y * s.kernel_x);
    for (std::int64_t plane = 0; plane < s.samples * s.channels; ++plane)
        for (std::int64_t oy = 0; oy < s.out_rows; ++oy)
            for (std::int64_t ox = 0; ox < s.out_columns; ++ox) {
                float sum = 0;
                for (std::int64_t py = greatest(0, oy * s.stride - s.padding);
                     py < least(s.rows, oy * s.stride - s.padding + s.kernel_y); ++py)
                    for (std::int64_t px = greatest(0, ox * s.stride - s.padding);
                         px < least(s.columns, ox * s.stride - s.padding + s.kernel_x); ++px)
                        sum += x[(plane * s.rows + py) * s.columns + px];
                *y++ = sum * share;
            }
}

void average_pool_backward(const ImageShape& s, const float* dy, float* dx) {
    const float share = 1.0f / (s.kernel_y * s.kernel_x);
    for (std::int64_t plane = 0; plane < s.samples * s.channels; ++plane)
        for (std::int64_t oy = 0; oy < s.out_rows; ++oy)
            for (std::int64_t ox = 0; ox < s.out_columns; ++ox, ++dy)
                for (std::int64_t py = greatest(0, oy * s.stride - s.padding);
                     py < least(s.rows, oy * s.stride - s.padding + s.kernel_y); ++py)
                    for (std::int64_t px = greatest(0, ox * s.stride - s.padding);
                         px < least(s.columns, ox * s.stride - s.padding + s.kernel_x); ++px)
                        dx[(plane * s.rows + py) * s.columns + px] += *dy * share;
}

}  // namespace
}  // namespace exec::cpu::INSTRUCTION_SET
