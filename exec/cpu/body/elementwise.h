// Kernels of which each output element depends on one element of each input.
#pragma once

#include <cstdint>

#include "exec/cpu/body/eigen.h"
#include "exec/cpu/kernels.h"

namespace exec::cpu::INSTRUCTION_SET {
namespace {

void add(std::int64_t count, const float* a, const float* b, float* y) {
    for (std::int64_t i = 0; i < count; ++i) y[i] = a[i] + b[i];
}

void scale(std::int64_t count, float factor, const float* x, float* y) {
    for (std::int64_t i = 0; i < count; ++i) y[i] = factor * x[i];
}

constexpr float inverse_sqrt_2 = 0.70710678118654752440f, inverse_sqrt_2_pi = 0.39894228040143267794f;
// Hendrycks and Gimpel, arXiv 1606.08415: gelu(x) ~ x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
constexpr float gelu_slope = 0.79788456080286535588f, gelu_cubic = 0.044715f;

// Elements per block. A block of fp32 is 8 KiB and stays in the first-level cache, so that the passes of an
// expression cost no memory traffic.
constexpr Index block = 2048;

template <class X>
void unary_value(Unary kind, const X& x, Eigen::ArrayXf& y) {
    switch (kind) {
        case Unary::gelu: y = 0.5f * x * (1.0f + (x * inverse_sqrt_2).erf()); break;
        case Unary::gelu_tanh:
            y = 0.5f * x * (1.0f + (gelu_slope * (x + gelu_cubic * x * x * x)).tanh());
            break;
        case Unary::relu: y = x.max(0.0f); break;
        case Unary::silu: y = x / (1.0f + (-x).exp()); break;
        case Unary::tanh: y = x.tanh(); break;
    }
}

// The derivative, from the input for gelu and silu, from the output for relu and tanh.
template <class X>
void unary_slope(Unary kind, const X& x, Eigen::ArrayXf& d) {
    switch (kind) {
        case Unary::gelu:
            d = 0.5f * (1.0f + (x * inverse_sqrt_2).erf()) + x * inverse_sqrt_2_pi * (-0.5f * x * x).exp();
            break;
        case Unary::gelu_tanh: {
            // With e = exp(-2|u|): (1 + tanh u)/2 is 1/(1 + e) or e/(1 + e), and 1 - tanh^2 u = 4 e/(1 +
            // e)^2, both without cancellation.
            const Eigen::ArrayXf u = gelu_slope * (x + gelu_cubic * x * x * x);
            const Eigen::ArrayXf e = (-2.0f * u.abs()).exp(), s = 1.0f / (1.0f + e);
            d = (u > 0.0f).select(s, e * s) +
                2.0f * x * e * s * s * gelu_slope * (1.0f + 3.0f * gelu_cubic * x * x);
            break;
        }
        case Unary::relu: d = (x > 0.0f).template cast<float>(); break;
        case Unary::silu: {
            const Eigen::ArrayXf s = 1.0f / (1.0f + (-x).exp());
            d = s * (1.0f + x * (1.0f - s));
            break;
        }
        case Unary::tanh: d = 1.0f - x * x; break;
    }
}

void unary(Unary kind, std::int64_t count, const float* x, float* y) {
    Eigen::ArrayXf value(block);
    for (Index begin = 0; begin < count; begin += block) {
        const Index size = least(block, count - begin);
        unary_value(kind, ConstArray(x + begin, size), value);
        MutableArray(y + begin, size) = value;
    }
}

void unary_backward(Unary kind, std::int64_t count, const float* saved, const float* dy, float* dx) {
    Eigen::ArrayXf slope(block);
    for (Index begin = 0; begin < count; begin += block) {
        const Index size = least(block, count - begin);
        unary_slope(kind, ConstArray(saved + begin, size), slope);
        MutableArray(dx + begin, size) += slope * ConstArray(dy + begin, size);
    }
}

void gated(Unary kind, std::int64_t rows, std::int64_t width, const float* x, float* y) {
    Eigen::ArrayXf value(width);
    for (std::int64_t r = 0; r < rows; ++r) {
        unary_value(kind, ConstArray(x + 2 * r * width, width), value);
        MutableArray(y + r * width, width) = value * ConstArray(x + (2 * r + 1) * width, width);
    }
}

void gated_backward(Unary kind, std::int64_t rows, std::int64_t width, const float* x, const float* dy,
                    float* dx) {
    Eigen::ArrayXf value(width), slope(width);
    for (std::int64_t r = 0; r < rows; ++r) {
        const ConstArray gate(x + 2 * r * width, width), up(x + (2 * r + 1) * width, width),
            gradient(dy + r * width, width);
        unary_value(kind, gate, value);
        unary_slope(kind, gate, slope);
        MutableArray(dx + 2 * r * width, width) += slope * up * gradient;
        MutableArray(dx + (2 * r + 1) * width, width) += value * gradient;
    }
}

// exec::cpu::counter_hash as an inline function, so that the compiler can vectorise the loops that call it.
// The constants are those of SplitMix64 (core/random.h).
inline std::uint64_t hash(std::uint64_t key, std::uint64_t counter) {
    constexpr std::uint64_t golden_ratio = 0x9E3779B97F4A7C15ull;  // 2^64 / phi
    std::uint64_t z = key + golden_ratio * counter + golden_ratio;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

// The probability as a part of the range of the hash's upper 32 bits.
inline std::uint64_t threshold_of(float probability) {
    constexpr double hash_range = 4294967296.0;  // 2^32
    return static_cast<std::uint64_t>(probability * hash_range);
}

inline bool is_dropped(std::uint64_t key, std::uint64_t counter, std::uint64_t threshold) {
    return (hash(key, counter) >> 32) < threshold;
}

void dropout(std::uint64_t key, std::int64_t first, std::int64_t count, float probability, const float* x,
             float* y, std::uint8_t* mask) {
    const std::uint64_t threshold = threshold_of(probability), start = first;
    const float kept = 1.0f / (1.0f - probability);
    for (std::int64_t i = 0; i < count; ++i) {
        const bool drops = is_dropped(key, start + i, threshold);
        mask[i] = drops ? 0 : 1;
        y[i] = drops ? 0.0f : x[i] * kept;
    }
}

void dropout_backward(std::int64_t count, float probability, const std::uint8_t* mask, const float* dy,
                      float* dx) {
    const float kept = 1.0f / (1.0f - probability);
    for (std::int64_t i = 0; i < count; ++i) dx[i] += mask[i] ? dy[i] * kept : 0.0f;
}

}  // namespace
}  // namespace exec::cpu::INSTRUCTION_SET
