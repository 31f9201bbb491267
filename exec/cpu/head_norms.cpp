#include "exec/cpu/head_norms.h"

#include <cmath>
#include <cstring>

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

namespace {

float* copy(int slot, const HeadRows& rows, const float* from) {
    float* const to = scratch(slot, rows.rows * rows.stride);
    std::memcpy(to, from, rows.rows * rows.stride * sizeof(float));
    return to;
}

float* zeros(int slot, const HeadRows& rows) {
    float* const to = scratch(slot, rows.rows * rows.stride);
    std::memset(to, 0, rows.rows * rows.stride * sizeof(float));
    return to;
}

}  // namespace

NormalisedHeads::NormalisedHeads(const AttentionShape& shape, const model::Attributes& a, const Operands& x,
                                 const float* memory, std::int64_t row)
    : queries_(x.inputs[0].floats()),
      memory_(memory),
      scales_{x.parameters[0].floats(), x.parameters[1].floats()},
      is_packed_(memory == queries_) {
    const std::int64_t d = shape.head_dimension, key_row = 2 * shape.kv_heads * d;
    const auto epsilon = static_cast<float>(a.epsilon);
    query_rows_ = {shape.samples * shape.tokens, row, 0, shape.heads, d, epsilon};
    key_rows_ = is_packed_ ? HeadRows{query_rows_.rows, row, shape.heads * d, shape.kv_heads, d, epsilon}
                           : HeadRows{shape.samples * (shape.keys > 0 ? shape.keys : shape.tokens),
                                      key_row,
                                      0,
                                      shape.kv_heads,
                                      d,
                                      epsilon};
    normalised_queries_ = copy(10, query_rows_, queries_);
    normalised_memory_ = is_packed_ ? normalised_queries_ : copy(11, key_rows_, memory_);
    normalise_heads(query_rows_, queries_, scales_[0], normalised_queries_);
    normalise_heads(key_rows_, memory_, scales_[1], normalised_memory_);
}

void NormalisedHeads::clear_gradients() {
    query_gradients_ = zeros(12, query_rows_);
    memory_gradients_ = is_packed_ ? query_gradients_ : zeros(13, key_rows_);
}

void NormalisedHeads::backward(float* dqueries, float* dmemory, std::vector<float>& dscales) const {
    const std::int64_t d = query_rows_.dimension;
    dscales.resize(2 * d);
    normalise_heads_backward(query_rows_, queries_, scales_[0], query_gradients_, dqueries, dscales.data());
    normalise_heads_backward(key_rows_, memory_, scales_[1], memory_gradients_, dmemory, dscales.data() + d);
    const std::int64_t count = key_rows_.heads * d, values = key_rows_.first + count;
    for (std::int64_t r = 0; r < key_rows_.rows; ++r)
        kernels().accumulate(count, memory_gradients_ + r * key_rows_.stride + values,
                             dmemory + r * key_rows_.stride + values);
}

}  // namespace exec::cpu
