#include "exec/cpu/head_norms.h"

#include <cmath>

namespace exec::cpu {

namespace {

template <class Work>
void for_each_head(const HeadRows& at, const Work& work) {
    for (std::int64_t row = 0; row < at.rows; ++row)
        for (std::int64_t head = 0; head < at.heads; ++head)
            work(row * at.stride + at.first + head * at.dimension);
}

float reciprocal_root(const HeadRows& at, const float* x) {
    float squares = 0;
    for (std::int64_t i = 0; i < at.dimension; ++i) squares += x[i] * x[i];
    return 1.0f / std::sqrt(squares / static_cast<float>(at.dimension) + at.epsilon);
}

}  // namespace

void normalise_heads(const HeadRows& at, const float* x, const float* scale, float* y) {
    for_each_head(at, [&](std::int64_t begin) {
        const float factor = reciprocal_root(at, x + begin);
        for (std::int64_t i = 0; i < at.dimension; ++i) y[begin + i] = x[begin + i] * factor * scale[i];
    });
}

void normalise_heads_backward(const HeadRows& at, const float* x, const float* scale, const float* dy,
                              float* dx, float* dscale) {
    for_each_head(at, [&](std::int64_t begin) {
        const float factor = reciprocal_root(at, x + begin);
        float product = 0;
        for (std::int64_t i = 0; i < at.dimension; ++i) {
            const float normalised = x[begin + i] * factor;
            dscale[i] += dy[begin + i] * normalised;
            product += dy[begin + i] * scale[i] * normalised;
        }
        product /= static_cast<float>(at.dimension);
        for (std::int64_t i = 0; i < at.dimension; ++i)
            dx[begin + i] += (dy[begin + i] * scale[i] - x[begin + i] * factor * product) * factor;
    });
}

}  // namespace exec::cpu
