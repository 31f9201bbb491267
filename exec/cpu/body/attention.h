// Attention by blocks of queries. Only the scores of one block exist at a time, unless the probabilities are
// saved for the backward pass.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "exec/cpu/body/eigen.h"
#include "exec/cpu/body/elementwise.h"
#include "exec/cpu/body/product.h"
#include "exec/cpu/kernels.h"

namespace exec::cpu::INSTRUCTION_SET {
namespace {

constexpr std::int64_t query_block = 64;  // queries whose scores are computed together

// Offsets of heads in the arrays. Queries lie at the start of their rows. Keys and values follow them in the
// same rows, or have rows of their own in cross-attention.
struct Heads {
    const AttentionShape& shape;
    const std::int64_t d;                     // elements of a head
    const std::int64_t keys;                  // of a sample
    const std::int64_t query_stride, stride;  // elements of a row of queries, and of a row of keys
    const std::int64_t first_key;             // offset of the first key in its row

    explicit Heads(const AttentionShape& s)
        : shape(s),
          d(s.head_dimension),
          keys(s.keys > 0 ? s.keys : s.tokens),
          query_stride(s.query_row > 0 ? s.query_row
                                       : (s.heads + (s.keys > 0 ? 0 : 2 * s.kv_heads)) * s.head_dimension),
          stride(s.keys > 0 ? 2 * s.kv_heads * s.head_dimension : query_stride),
          first_key(s.keys > 0 ? 0 : s.heads * s.head_dimension) {}
    std::int64_t query(std::int64_t sample, std::int64_t head) const {
        return sample * shape.tokens * query_stride + head * d;
    }
    std::int64_t key(std::int64_t sample, std::int64_t kv) const {
        return sample * keys * stride + first_key + kv * d;
    }
    std::int64_t value(std::int64_t sample, std::int64_t kv) const {
        return key(sample, kv) + shape.kv_heads * d;
    }
    std::int64_t output(std::int64_t sample, std::int64_t head) const {
        return sample * shape.tokens * shape.heads * d + head * d;
    }
    // Rows of scores before those of this head.
    std::int64_t scores(std::int64_t sample, std::int64_t head) const {
        return (sample * shape.heads + head) * shape.tokens;
    }
};

// y = rotary position embedding of x (Su et al., arXiv 2104.09864), in the layout of GPT-NeoX and Llama: the
// first half of the rotated dimensions is paired with the second half.
void rotate(const AttentionShape& shape, bool is_query, const float* x, std::int64_t stride, float* y) {
    const std::int64_t d = shape.head_dimension, half = shape.rotary_dimension / 2,
                       rows = is_query ? shape.tokens : shape.sequence();
    for (std::int64_t t = 0; t < rows; ++t) {
        const std::int64_t place = is_query ? shape.place(t) : shape.key_place(t);
        const float *in = x + t * stride, *c = shape.cosines + place * half, *s = shape.sines + place * half;
        float* out = y + t * d;
        for (std::int64_t i = 0; i < half; ++i) {
            out[i] = in[i] * c[i] - in[i + half] * s[i];
            out[i + half] = in[i + half] * c[i] + in[i] * s[i];
        }
        for (std::int64_t i = 2 * half; i < d; ++i) out[i] = in[i];
    }
}

// y += the inverse rotation of x, rows [first, last) of the queries or of the sequence.
void rotate_back(const AttentionShape& shape, bool is_query, std::int64_t first, std::int64_t last,
                 const float* x, float* y, std::int64_t stride) {
    const std::int64_t d = shape.head_dimension, half = shape.rotary_dimension / 2;
    for (std::int64_t t = first; t < last; ++t) {
        const std::int64_t place = is_query ? shape.place(t) : shape.key_place(t);
        const float *in = x + (t - first) * d, *c = shape.cosines + place * half,
                    *s = shape.sines + place * half;
        float* out = y + t * stride;
        for (std::int64_t i = 0; i < half; ++i) {
            out[i] += in[i] * c[i] + in[i + half] * s[i];
            out[i + half] += in[i + half] * c[i] - in[i] * s[i];
        }
        for (std::int64_t i = 2 * half; i < d; ++i) out[i] += in[i];
    }
}

struct QueryBlock {
    std::int64_t first, last;  // queries
    std::int64_t low, high;    // keys that any of them sees
    std::int64_t stride;       // keys of a sample
    std::int64_t rows() const { return last - first; }
    std::int64_t keys() const { return high - low; }
};

// The first key at this place or behind it.
std::int64_t first_key_from(const AttentionShape& shape, std::int64_t place) {
    if (!shape.key_places) return place;
    std::int64_t low = 0, high = shape.keys;
    while (low < high) {
        const std::int64_t middle = (low + high) / 2;
        if (shape.key_places[middle] < place) low = middle + 1;
        else high = middle;
    }
    return low;
}

// Keys that a query sees.
struct SeenKeys {
    std::int64_t low, high;
};
SeenKeys keys_of(const AttentionShape& shape, std::int64_t place, std::int64_t last) {
    return {shape.window > 0 ? first_key_from(shape, greatest(0, place - shape.window + 1)) : 0,
            shape.is_causal ? first_key_from(shape, place + 1) : last};
}

QueryBlock block_at(const AttentionShape& shape, std::int64_t first) {
    QueryBlock b;
    b.first = first;
    b.last = least(shape.tokens, first + query_block);
    b.stride = shape.keys > 0 ? shape.keys : shape.tokens;
    const std::int64_t last = shape.keys > 0 ? shape.keys : shape.tokens;
    b.low = keys_of(shape, shape.place(first), last).low;
    b.high = keys_of(shape, shape.place(b.last - 1), last).high;
    return b;
}

// Turns scores into probabilities in place. With `has_sums`, log_sums holds the logarithms of the sums of the
// forward pass, which are used; without, they are computed and written to log_sums unless it is null.
void probabilities_of(const AttentionShape& shape, std::int64_t head, const QueryBlock& b, float* p,
                      bool has_sums, float* log_sums) {
    for (std::int64_t i = b.first; i < b.last; ++i) {
        float* row = p + (i - b.first) * b.keys();
        const std::int64_t place = shape.place(i);
        const auto [low, high] = keys_of(shape, place, b.high);
        if (high <= low) {  // of a ring: none of these
            for (std::int64_t j = 0; j < b.keys(); ++j) row[j] = 0;
            if (!has_sums && log_sums) log_sums[i] = -std::numeric_limits<float>::infinity();
            continue;
        }
        for (std::int64_t j = b.low; j < low; ++j) row[j - b.low] = 0;
        for (std::int64_t j = high; j < b.high; ++j) row[j - b.low] = 0;
        MutableArray seen(row + (low - b.low), high - low);
        if (shape.alibi_slopes)
            for (std::int64_t j = low; j < high; ++j)
                row[j - b.low] += shape.alibi_slopes[head] * (shape.key_place(j) - place);
        if (shape.bias)
            for (std::int64_t j = low; j < high; ++j)
                row[j - b.low] += shape.bias[shape.bias_buckets[i * b.stride + j] * shape.heads + head];
        if (has_sums) {
            seen = (seen - log_sums[i]).exp();
            continue;
        }
        const float maximum = seen.maxCoeff();
        seen = (seen - maximum).exp();
        const float sum = seen.sum();
        seen *= 1.0f / sum;
        if (log_sums) log_sums[i] = maximum + std::log(sum);
    }
}

// Number of a score in the whole sequence, the counter of its dropout hash.
inline std::uint64_t score_place(const AttentionShape& shape, std::int64_t head, std::int64_t i,
                                 std::int64_t j) {
    const std::int64_t queries = shape.whole_sequence > 0 ? shape.whole_sequence : shape.sequence();
    const std::int64_t keys = shape.whole_sequence > 0 ? shape.whole_sequence
                              : shape.keys > 0         ? shape.keys
                                                       : shape.tokens;
    return ((shape.first_head + head) * queries + shape.place(i)) * keys + shape.key_place(j);
}

// dropped = mask p / (1 - probability).
void drop(const AttentionShape& shape, std::int64_t sample, std::int64_t head, const QueryBlock& b,
          const float* p, float* dropped) {
    const std::uint64_t threshold = threshold_of(shape.dropout), key = shape.dropout_keys[sample];
    const float kept = 1.0f / (1.0f - shape.dropout);
    for (std::int64_t i = b.first; i < b.last; ++i) {
        const std::int64_t at = (i - b.first) * b.keys();
        const std::uint64_t before = score_place(shape, head, i, 0) - shape.key_place(0);
        for (std::int64_t j = 0; j < b.keys(); ++j)
            dropped[at + j] =
                is_dropped(key, before + shape.key_place(b.low + j), threshold) ? 0.0f : p[at + j] * kept;
    }
}

// y and its sums, of all keys seen before, and of those of one more part: as if they were seen together.
void merge(std::int64_t rows, std::int64_t d, const float* part, const float* part_sums, float* y,
           std::int64_t stride, float* log_sums) {
    for (std::int64_t i = 0; i < rows; ++i) {
        const float largest = log_sums[i] > part_sums[i] ? log_sums[i] : part_sums[i],
                    old_share = std::exp(log_sums[i] - largest), share = std::exp(part_sums[i] - largest),
                    sum = old_share + share;
        MutableArray into(y + i * stride, d);
        into = into * (old_share / sum) + ConstArray(part + i * d, d) * (share / sum);
        log_sums[i] = largest + std::log(sum);
    }
}

void attention(const AttentionShape& shape, const float* queries, const float* keys, float* y,
               const AttentionSaved& saved) {
    const Heads at(shape);
    const std::int64_t d = at.d, group = shape.heads / shape.kv_heads, n = shape.tokens, m = at.keys;
    float* p = scratch(0, query_block * m);
    float* dropped = shape.dropout > 0 ? scratch(1, query_block * m) : p;
    float* turned_key = shape.rotary_dimension > 0 ? scratch(2, shape.sequence() * d) : nullptr;
    float* turned_query = shape.rotary_dimension > 0 ? scratch(3, n * d) : nullptr;
    float* part = shape.joins ? scratch(4, query_block * (d + 1)) : nullptr;  // results, sums
    for (std::int64_t sample = 0; sample < shape.samples; ++sample)
        for (std::int64_t head = 0; head < shape.heads; ++head) {
            const std::int64_t kv = head / group;
            if (turned_key && head % group == 0)
                rotate(shape, false, keys + at.key(sample, kv), at.stride, turned_key);
            if (turned_query)
                rotate(shape, true, queries + at.query(sample, head), at.query_stride, turned_query);
            const float* key = turned_key ? turned_key : keys + at.key(sample, kv);
            const float* query = turned_query ? turned_query : queries + at.query(sample, head);
            const std::int64_t ld = turned_key ? d : at.stride, query_ld = turned_key ? d : at.query_stride;
            float* log_sums = saved.log_sums ? saved.log_sums + at.scores(sample, head) : nullptr;
            for (std::int64_t first = 0; first < n; first += query_block) {
                const QueryBlock b = block_at(shape, first);
                if (b.keys() <= 0) continue;  // of a ring, whose queries have seen their own
                product(false, true, b.rows(), b.keys(), d, shape.scale, query + first * query_ld, query_ld,
                        key + b.low * ld, ld, p, b.keys(), false);
                float* const part_sums = part ? part + query_block * d : nullptr;
                probabilities_of(shape, head, b, p, false, part ? part_sums - first : log_sums);
                if (shape.dropout > 0) drop(shape, sample, head, b, p, dropped);
                float* const rows = y + at.output(sample, head) + first * shape.heads * d;
                product(false, false, b.rows(), d, b.keys(), 1, dropped, b.keys(),
                        keys + at.value(sample, kv) + b.low * at.stride, at.stride, part ? part : rows,
                        part ? d : shape.heads * d, false);
                if (part) merge(b.rows(), d, part, part_sums, rows, shape.heads * d, log_sums + first);
                if (!saved.probabilities) continue;
                for (std::int64_t i = 0; i < b.rows(); ++i) {
                    const std::int64_t row = (at.scores(sample, head) + first + i) * m;
                    float* full = saved.probabilities + row;
                    std::memset(full, 0, m * sizeof(float));
                    std::memcpy(full + b.low, p + i * b.keys(), b.keys() * sizeof(float));
                    if (!saved.dropped) continue;
                    std::memset(saved.dropped + row, 0, m * sizeof(float));
                    std::memcpy(saved.dropped + row + b.low, dropped + i * b.keys(),
                                b.keys() * sizeof(float));
                    for (std::int64_t j = 0; j < m; ++j)
                        saved.mask[row + j] =
                            is_dropped(shape.dropout_keys[sample], score_place(shape, head, first + i, j),
                                       threshold_of(shape.dropout))
                                ? 0
                                : 1;
                }
            }
        }
}

// Replaces dp, the gradient of the probabilities, by the gradient of the scores: scale p (dp - sum(p dp)).
// The sum is over all keys, which is the product of the output and its gradient; `output`: where these keys
// are not all, rows as those of the gradient.
void softmax_backward(const QueryBlock& b, float scale_of_scores, const float* p, float* dp,
                      const float* output, const float* dy, std::int64_t d, std::int64_t stride) {
    for (std::int64_t i = 0; i < b.rows(); ++i) {
        const ConstArray probability(p + i * b.keys(), b.keys());
        MutableArray gradient(dp + i * b.keys(), b.keys());
        const float sum = output ? (ConstArray(output + i * stride, d) * ConstArray(dy + i * stride, d)).sum()
                                 : (probability * gradient).sum();
        gradient = scale_of_scores * probability * (gradient - sum);
    }
}

void attention_backward(const AttentionShape& shape, const float* queries, const float* keys,
                        const AttentionSaved& saved, const float* dy, float* dqueries, float* dkeys,
                        float* dbias) {
    const Heads at(shape);
    const std::int64_t d = at.d, group = shape.heads / shape.kv_heads, n = shape.tokens, m = at.keys;
    const bool turns = shape.rotary_dimension > 0, drops = shape.dropout > 0;
    float *p = scratch(0, query_block * m), *dropped = drops ? scratch(1, query_block * m) : p,
          *dp = scratch(4, query_block * m);
    float *turned_key = turns ? scratch(2, shape.sequence() * d) : nullptr,
          *turned_query = turns ? scratch(3, n * d) : nullptr;
    float *dkey = turns ? scratch(5, shape.sequence() * d) : nullptr,
          *dquery = turns ? scratch(6, query_block * d) : nullptr;
    const float kept = drops ? 1.0f / (1.0f - shape.dropout) : 1.0f;
    for (std::int64_t sample = 0; sample < shape.samples; ++sample)
        for (std::int64_t head = 0; head < shape.heads; ++head) {
            const std::int64_t kv = head / group;
            if (turns && head % group == 0) {
                rotate(shape, false, keys + at.key(sample, kv), at.stride, turned_key);
                std::memset(dkey, 0, (shape.sequence() * d) * sizeof(float));
            }
            if (turns) rotate(shape, true, queries + at.query(sample, head), at.query_stride, turned_query);
            const float* key = turns ? turned_key : keys + at.key(sample, kv);
            const float* query = turns ? turned_query : queries + at.query(sample, head);
            const float* value = keys + at.value(sample, kv);
            const std::int64_t ld = turns ? d : at.stride, query_ld = turns ? d : at.query_stride,
                               output_stride = shape.heads * d;
            for (std::int64_t first = 0; first < n; first += query_block) {
                const QueryBlock b = block_at(shape, first);
                if (b.keys() <= 0) continue;
                const float* gradient = dy + at.output(sample, head) + first * output_stride;
                if (saved.probabilities) {
                    for (std::int64_t i = 0; i < b.rows(); ++i) {
                        const std::int64_t row = (at.scores(sample, head) + first + i) * m + b.low;
                        std::memcpy(p + i * b.keys(), saved.probabilities + row, b.keys() * sizeof(float));
                        if (drops)
                            std::memcpy(dropped + i * b.keys(), saved.dropped + row,
                                        b.keys() * sizeof(float));
                    }
                } else {
                    product(false, true, b.rows(), b.keys(), d, shape.scale, query + first * query_ld,
                            query_ld, key + b.low * ld, ld, p, b.keys(), false);
                    probabilities_of(shape, head, b, p, true, saved.log_sums + at.scores(sample, head));
                    if (drops) drop(shape, sample, head, b, p, dropped);
                }
                product(true, false, b.keys(), d, b.rows(), 1, dropped, b.keys(), gradient, output_stride,
                        dkeys + at.value(sample, kv) + b.low * at.stride, at.stride, true);
                product(false, true, b.rows(), b.keys(), d, 1, gradient, output_stride,
                        value + b.low * at.stride, at.stride, dp, b.keys(), false);
                if (drops)  // a kept score has dropped = p / (1 - probability)
                    for (std::int64_t i = 0; i < b.rows() * b.keys(); ++i)
                        dp[i] = dropped[i] != 0.0f ? dp[i] * kept : 0.0f;
                softmax_backward(b, shape.scale, p, dp,
                                 saved.output ? saved.output + (gradient - dy) : nullptr, gradient, d,
                                 output_stride);
                if (dbias)
                    for (std::int64_t i = 0; i < b.rows(); ++i)
                        for (std::int64_t j = 0; j < b.keys(); ++j)
                            dbias[shape.bias_buckets[(first + i) * m + b.low + j] * shape.heads + head] +=
                                dp[i * b.keys() + j] / shape.scale;
                if (turns) {
                    product(false, false, b.rows(), d, b.keys(), 1, dp, b.keys(), key + b.low * ld, ld,
                            dquery, d, false);
                    rotate_back(shape, true, b.first, b.last, dquery, dqueries + at.query(sample, head),
                                at.query_stride);
                    product(true, false, b.keys(), d, b.rows(), 1, dp, b.keys(), query + first * query_ld,
                            query_ld, dkey + b.low * d, d, true);
                } else {
                    product(false, false, b.rows(), d, b.keys(), 1, dp, b.keys(), key + b.low * ld, ld,
                            dqueries + at.query(sample, head) + first * at.query_stride, at.query_stride,
                            true);
                    product(true, false, b.keys(), d, b.rows(), 1, dp, b.keys(), query + first * query_ld,
                            query_ld, dkeys + at.key(sample, kv) + b.low * at.stride, at.stride, true);
                }
            }
            if (turns && head % group == group - 1)
                rotate_back(shape, false, 0, shape.sequence(), dkey, dkeys + at.key(sample, kv), at.stride);
        }
}

}  // namespace
}  // namespace exec::cpu::INSTRUCTION_SET
