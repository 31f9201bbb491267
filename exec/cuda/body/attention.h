// Attention for whatever cuDNN's fused kernels do not take: fp32, windows, ALiBi, our own dropout, GPUs
// before Ampere.
//
// Tiles of queries and keys in shared memory with a running maximum and sum (Dao et al., arXiv 2205.14135),
// arithmetic in fp32 on the ordinary units. Backward recomputes the probabilities from the kept logarithms of
// sums; gradients of keys and values are the work of a block per key tile, those of queries of a block per
// query tile: no atomic additions, the same bits every time.
#pragma once

#include "exec/cuda/body/elementwise.h"

namespace exec::cuda::kernel_body {

// Blocks count the columns of a head as threads are counted.
SMSIM_HOST_DEVICE int head_columns(const AttentionShape& shape) {
    return static_cast<int>(shape.head_dimension);
}

inline constexpr float hidden = -3.402823466e38f;  // score of a key that a query does not see

template <class T>
struct AttentionTiles {
    AttentionShape shape;
    int tile, stride;  // stride: floats of a row in shared memory, one more than the head so that rows start
                       // in different banks
    std::int64_t tiles, key_tiles;

    SMSIM_DEVICE std::int64_t query(std::int64_t sample, std::int64_t head) const {
        return sample * shape.tokens * shape.row() + head * shape.head_dimension;
    }
    SMSIM_DEVICE std::int64_t key(std::int64_t sample, std::int64_t kv) const {
        return shape.keys > 0 ? sample * shape.keys * shape.key_row() + kv * shape.head_dimension
                              : query(sample, shape.heads + kv);
    }
    SMSIM_DEVICE std::int64_t value(std::int64_t sample, std::int64_t kv) const {
        return key(sample, kv) + shape.kv_heads * shape.head_dimension;
    }
    SMSIM_DEVICE std::int64_t output(std::int64_t sample, std::int64_t head) const {
        return (sample * shape.tokens * shape.heads + head) * shape.head_dimension;
    }
    SMSIM_DEVICE std::int64_t key_position(std::int64_t j) const { return position_of(shape.key_range, j); }
    SMSIM_DEVICE bool sees(std::int64_t i, std::int64_t j) const {
        if (i >= shape.tokens || j >= shape.key_count()) return false;
        const std::int64_t position = position_of(shape.token_range, i), place = key_position(j);
        if (shape.is_causal && place > position) return false;
        return shape.window <= 0 || place > position - shape.window;
    }
    SMSIM_DEVICE std::int64_t last_position(std::int64_t first_query) const {
        return position_of(shape.token_range,
                           (first_query + tile < shape.tokens ? first_query + tile : shape.tokens) - 1);
    }
    // Keys that some query of a tile may see; of a ring all.
    SMSIM_DEVICE std::int64_t least_key(std::int64_t first_query) const {
        if (shape.key_range.part > 0) return 0;
        const std::int64_t position = position_of(shape.token_range, first_query);
        const std::int64_t least =
            shape.window > 0 && position - shape.window + 1 > 0 ? position - shape.window + 1 : 0;
        return least / tile * tile;
    }
    SMSIM_DEVICE std::int64_t key_end(std::int64_t first_query) const {
        return shape.is_causal && shape.key_range.part == 0 ? last_position(first_query) + 1
                                                            : shape.key_count();
    }
    SMSIM_DEVICE float kept(std::int64_t sample, std::int64_t head, std::int64_t i, std::int64_t j,
                            std::uint64_t threshold) const {
        const auto element = static_cast<std::uint64_t>(
            ((shape.first_head + head) * shape.sequence() + position_of(shape.token_range, i)) *
                shape.sequence() +
            key_position(j));
        return is_dropped(shape.dropout_keys[sample], element, threshold) ? 0.0f
                                                                          : 1.0f / (1.0f - shape.dropout);
    }
    // Rows [first, first + tile) of the `rows` at `from`, which are `width` elements apart.
    template <class Thread>
    SMSIM_DEVICE void fetch(const Thread& t, const T* from, std::int64_t rows, std::int64_t width,
                            std::int64_t first, float* to) const {
        const auto d = head_columns(shape);
        for (int e = t.thread(); e < tile * d; e += t.threads()) {
            const std::int64_t row = first + e / d;
            to[e / d * stride + e % d] = row < rows ? to_float(from[row * width + e % d]) : 0.0f;
        }
    }
    template <class Thread>
    SMSIM_DEVICE void fetch_queries(const Thread& t, const T* qkv, std::int64_t sample, std::int64_t head,
                                    std::int64_t first, float* to) const {
        fetch(t, qkv + query(sample, head), shape.tokens, shape.row(), first, to);
    }
    template <class Thread>
    SMSIM_DEVICE void fetch_output(const Thread& t, const T* y, std::int64_t sample, std::int64_t head,
                                   std::int64_t first, float* to) const {
        fetch(t, y + output(sample, head), shape.tokens, shape.heads * shape.head_dimension, first, to);
    }
    template <class Thread>
    SMSIM_DEVICE void fetch_keys(const Thread& t, const T* memory, std::int64_t sample, std::int64_t kv,
                                 std::int64_t first, float* k, float* v) const {
        fetch(t, memory + key(sample, kv), shape.key_count(), shape.key_row(), first, k);
        fetch(t, memory + value(sample, kv), shape.key_count(), shape.key_row(), first, v);
    }
    template <class Thread>
    SMSIM_DEVICE void clear(const Thread& t, float* rows) const {
        for (int e = t.thread(); e < tile * stride; e += t.threads()) rows[e] = 0;
    }
    SMSIM_DEVICE float dot(const float* a, const float* b) const {
        float sum = 0;
        for (int c = 0; c < shape.head_dimension; ++c) sum += a[c] * b[c];
        return sum;
    }
    SMSIM_DEVICE float score(const float* q, const float* k, std::int64_t head, std::int64_t i,
                             std::int64_t j) const {
        if (!sees(i, j)) return hidden;
        const float s = shape.scale * dot(q, k);
        return shape.alibi_slopes
                   ? s + shape.alibi_slopes[head] * (key_position(j) - position_of(shape.token_range, i))
                   : s;
    }
};

template <class T>
struct AttentionForward {
    static constexpr bool is_cooperative = true;
    static constexpr int most_threads = 128;
    static constexpr const char* name = "attention";
    AttentionTiles<T> a;
    std::uint64_t threshold;
    const T *qkv, *memory;
    T* y;
    float* log_sums;

    static constexpr std::size_t shared(int tile, int stride) {
        return (std::size_t{4} * tile * stride + tile * (tile + 1) + 3 * tile) * sizeof(float);
    }

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        const AttentionShape& shape = a.shape;
        const int n = a.tile;
        const std::int64_t first = t.block() % a.tiles * n, head = t.block() / a.tiles % shape.heads,
                           sample = t.block() / (a.tiles * shape.heads);
        const std::int64_t kv = head / (shape.heads / shape.kv_heads);
        float *q = t.template shared<float>(), *k = q + n * a.stride, *v = k + n * a.stride,
              *o = v + n * a.stride, *p = o + n * a.stride;
        float *largest = p + n * (n + 1), *sum = largest + n, *change = sum + n;
        a.fetch_queries(t, qkv, sample, head, first, q);
        a.clear(t, o);
        for (int i = t.thread(); i < n; i += t.threads()) {
            largest[i] = hidden;
            sum[i] = 0;
        }
        t.synchronize();
        for (std::int64_t k0 = a.least_key(first); k0 < a.key_end(first); k0 += n) {
            a.fetch_keys(t, memory, sample, kv, k0, k, v);
            t.synchronize();
            for (int e = t.thread(); e < n * n; e += t.threads())
                p[e / n * (n + 1) + e % n] =
                    a.score(q + e / n * a.stride, k + e % n * a.stride, head, first + e / n, k0 + e % n);
            t.synchronize();
            for (int i = t.thread(); i < n; i += t.threads()) {
                float* row = p + i * (n + 1);
                float most = largest[i];
                for (int j = 0; j < n; ++j) most = most > row[j] ? most : row[j];
                change[i] = largest[i] > hidden ? expf(largest[i] - most) : 0.0f;
                float total = sum[i] * change[i];
                for (int j = 0; j < n; ++j) {
                    const float x = row[j] > hidden ? expf(row[j] - most) : 0.0f;
                    total += x;
                    row[j] = shape.dropout > 0 && x > 0
                                 ? x * a.kept(sample, head, first + i, k0 + j, threshold)
                                 : x;
                }
                sum[i] = total;
                largest[i] = most;
            }
            t.synchronize();
            for (int e = t.thread(); e < n * shape.head_dimension; e += t.threads()) {
                const int i = e / head_columns(shape), c = e % head_columns(shape);
                float x = o[i * a.stride + c] * change[i];
                for (int j = 0; j < n; ++j) x += p[i * (n + 1) + j] * v[j * a.stride + c];
                o[i * a.stride + c] = x;
            }
            t.synchronize();
        }
        for (int e = t.thread(); e < n * shape.head_dimension; e += t.threads()) {
            const int i = e / head_columns(shape), c = e % head_columns(shape);
            if (first + i >= shape.tokens) continue;
            y[a.output(sample, head) + (first + i) * shape.heads * shape.head_dimension + c] =
                from_float<T>(sum[i] > 0 ? o[i * a.stride + c] / sum[i] : 0.0f);
        }
        for (int i = t.thread(); i < n; i += t.threads())
            if (first + i < shape.tokens)
                log_sums[(sample * shape.heads + head) * shape.tokens + first + i] =
                    largest[i] + logf(sum[i]);
    }
};

// Per query: the product of result and its gradient. A warp a query.
template <class T>
struct AttentionDelta {
    static constexpr bool is_cooperative = true;
    static constexpr int most_threads = 128;
    static constexpr const char* name = "attention_delta";
    AttentionShape shape;
    const T *y, *dy;
    float* delta;

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        const std::int64_t row = t.block() * 4 + t.thread() / 32;  // of [samples, tokens, heads]
        if (row >= shape.samples * shape.tokens * shape.heads) return;
        float sum = 0;
        for (std::int64_t c = t.thread() % 32; c < shape.head_dimension; c += 32)
            sum += to_float(y[row * shape.head_dimension + c]) * to_float(dy[row * shape.head_dimension + c]);
        sum = warp_sum(t, sum);
        const std::int64_t head = row % shape.heads, token = row / shape.heads % shape.tokens,
                           sample = row / (shape.heads * shape.tokens);
        if (t.thread() % 32 == 0) delta[(sample * shape.heads + head) * shape.tokens + token] = sum;
    }
};

// A warp a query, of one head.
template <class T>
struct MergeAttention {
    static constexpr bool is_cooperative = true;
    static constexpr int most_threads = 128;
    static constexpr const char* name = "merge_attention";
    AttentionShape shape;
    std::int64_t first, count;
    const T* part;
    const float* part_sums;
    T* y;
    float* log_sums;

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        const std::int64_t row = t.block() * 4 + t.thread() / 32;  // of [samples, heads, count]
        const bool is_there = row < shape.samples * shape.heads * count;
        const std::int64_t query = first + row % count, head = row / count % shape.heads,
                           sample = row / (count * shape.heads);
        const std::int64_t begin =
            ((sample * shape.tokens + query) * shape.heads + head) * shape.head_dimension;
        const float own = is_there ? log_sums[row] : 0.0f, other = is_there ? part_sums[row] : 0.0f;
        const float most = own > other ? own : other;
        const float own_share = expf(own - most), share = expf(other - most), sum = own_share + share;
        for (std::int64_t c = t.thread() % 32; is_there && c < shape.head_dimension; c += 32)
            y[begin + c] = from_float<T>(to_float(y[begin + c]) * (own_share / sum) +
                                         to_float(part[begin + c]) * (share / sum));
        t.synchronize();
        if (is_there && t.thread() % 32 == 0) log_sums[row] = most + logf(sum);
    }
};

// One tile of queries against one of keys: probabilities (dropped) in p, the scores' gradients in ds.
template <class T>
struct AttentionGradients {
    AttentionTiles<T> a;
    std::uint64_t threshold;
    const float *log_sums, *delta;

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t, std::int64_t sample, std::int64_t head, std::int64_t q0,
                                 std::int64_t k0, const float* q, const float* k, const float* v,
                                 const float* dout, float* p, float* ds) const {
        const int n = a.tile;
        const std::int64_t base = (sample * a.shape.heads + head) * a.shape.tokens;
        for (int e = t.thread(); e < n * n; e += t.threads()) {
            const int i = e / n, j = e % n;
            const float s = a.score(q + i * a.stride, k + j * a.stride, head, q0 + i, k0 + j);
            float x = 0, gradient = 0;
            if (s > hidden) {
                x = expf(s - log_sums[base + q0 + i]);
                const float kept =
                    a.shape.dropout > 0 ? a.kept(sample, head, q0 + i, k0 + j, threshold) : 1.0f;
                gradient = a.shape.scale * x *
                           (kept * a.dot(dout + i * a.stride, v + j * a.stride) - delta[base + q0 + i]);
                x *= kept;
            }
            p[i * (n + 1) + j] = x;
            ds[i * (n + 1) + j] = gradient;
        }
    }
};

template <class T>
struct AttentionKeyBackward {
    static constexpr bool is_cooperative = true;
    static constexpr int most_threads = 128;
    static constexpr const char* name = "attention_key_backward";
    AttentionGradients<T> gradients;
    const T *qkv, *memory, *dy;
    T* dmemory;

    static constexpr std::size_t shared(int tile, int stride) {
        return (std::size_t{6} * tile * stride + 2 * tile * (tile + 1)) * sizeof(float);
    }

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        const AttentionTiles<T>& a = gradients.a;
        const AttentionShape& shape = a.shape;
        const int n = a.tile, d = head_columns(shape);
        const std::int64_t k0 = t.block() % a.key_tiles * n, kv = t.block() / a.key_tiles % shape.kv_heads,
                           sample = t.block() / (a.key_tiles * shape.kv_heads);
        float *k = t.template shared<float>(), *v = k + n * a.stride, *dk = v + n * a.stride,
              *dv = dk + n * a.stride, *q = dv + n * a.stride;
        float *dout = q + n * a.stride, *p = dout + n * a.stride, *ds = p + n * (n + 1);
        a.fetch_keys(t, memory, sample, kv, k0, k, v);
        a.clear(t, dk);
        a.clear(t, dv);
        const std::int64_t group = shape.heads / shape.kv_heads;
        for (std::int64_t head = kv * group; head < (kv + 1) * group; ++head)
            for (std::int64_t q0 = 0; q0 < shape.tokens; q0 += n) {
                // Queries before the tile see nothing of it when causal; those beyond the window neither.
                if (shape.is_causal && a.last_position(q0) < a.key_position(k0)) continue;
                if (shape.window > 0 && position_of(shape.token_range, q0) >= k0 + n - 1 + shape.window)
                    continue;
                t.synchronize();
                a.fetch_queries(t, qkv, sample, head, q0, q);
                a.fetch_output(t, dy, sample, head, q0, dout);
                t.synchronize();
                gradients(t, sample, head, q0, k0, q, k, v, dout, p, ds);
                t.synchronize();
                for (int e = t.thread(); e < n * d; e += t.threads()) {
                    const int j = e / d, c = e % d;
                    float x = 0, z = 0;
                    for (int i = 0; i < n; ++i) {
                        x += ds[i * (n + 1) + j] * q[i * a.stride + c];
                        z += p[i * (n + 1) + j] * dout[i * a.stride + c];
                    }
                    dk[j * a.stride + c] += x;
                    dv[j * a.stride + c] += z;
                }
            }
        t.synchronize();
        for (int e = t.thread(); e < n * d; e += t.threads()) {
            const std::int64_t row = k0 + e / d;
            if (row >= shape.key_count()) continue;
            dmemory[a.key(sample, kv) + row * shape.key_row() + e % d] =
                from_float<T>(dk[e / d * a.stride + e % d]);
            dmemory[a.value(sample, kv) + row * shape.key_row() + e % d] =
                from_float<T>(dv[e / d * a.stride + e % d]);
        }
    }
};

template <class T>
struct AttentionQueryBackward {
    static constexpr bool is_cooperative = true;
    static constexpr int most_threads = 128;
    static constexpr const char* name = "attention_query_backward";
    AttentionGradients<T> gradients;
    const T *qkv, *memory, *dy;
    T* dqkv;

    static constexpr std::size_t shared(int tile, int stride) {
        return (std::size_t{5} * tile * stride + 2 * tile * (tile + 1)) * sizeof(float);
    }

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        const AttentionTiles<T>& a = gradients.a;
        const AttentionShape& shape = a.shape;
        const int n = a.tile, d = head_columns(shape);
        const std::int64_t q0 = t.block() % a.tiles * n, head = t.block() / a.tiles % shape.heads,
                           sample = t.block() / (a.tiles * shape.heads);
        const std::int64_t kv = head / (shape.heads / shape.kv_heads);
        float *q = t.template shared<float>(), *dout = q + n * a.stride, *dq = dout + n * a.stride,
              *k = dq + n * a.stride, *v = k + n * a.stride;
        float *p = v + n * a.stride, *ds = p + n * (n + 1);
        a.fetch_queries(t, qkv, sample, head, q0, q);
        a.fetch_output(t, dy, sample, head, q0, dout);
        a.clear(t, dq);
        for (std::int64_t k0 = a.least_key(q0); k0 < a.key_end(q0); k0 += n) {
            t.synchronize();
            a.fetch_keys(t, memory, sample, kv, k0, k, v);
            t.synchronize();
            gradients(t, sample, head, q0, k0, q, k, v, dout, p, ds);
            t.synchronize();
            for (int e = t.thread(); e < n * d; e += t.threads()) {
                float x = 0;
                for (int j = 0; j < n; ++j) x += ds[e / d * (n + 1) + j] * k[j * a.stride + e % d];
                dq[e / d * a.stride + e % d] += x;
            }
        }
        t.synchronize();
        for (int e = t.thread(); e < n * d; e += t.threads())
            if (q0 + e / d < shape.tokens)
                dqkv[a.query(sample, head) + (q0 + e / d) * shape.row() + e % d] =
                    from_float<T>(dq[e / d * a.stride + e % d]);
    }
};

// Unfused: a row of scores a block.
template <class T>
struct AttentionSoftmax {
    static constexpr bool is_cooperative = true;
    static constexpr int most_threads = 256;
    static constexpr const char* name = "attention_softmax";
    AttentionShape shape;
    std::uint64_t threshold;
    T *scores, *dropped;
    std::uint8_t* mask;

    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        float* scratch = t.template shared<float>();
        const std::int64_t i = position_of(shape.token_range, t.block() % shape.tokens),
                           keys = shape.key_count();
        const std::int64_t head = t.block() / shape.tokens % shape.heads,
                           sample = t.block() / (shape.tokens * shape.heads);
        const std::int64_t low = shape.window > 0 && i - shape.window + 1 > 0 ? i - shape.window + 1 : 0,
                           high = shape.is_causal ? i + 1 : keys;
        T* row = scores + t.block() * keys;
        const float slope = shape.alibi_slopes ? shape.alibi_slopes[head] : 0.0f;
        float most = hidden, sum = 0;
        for (std::int64_t j = low + t.thread(); j < high; j += t.threads()) {
            const float x = to_float(row[j]) + slope * (j - i);
            most = most > x ? most : x;
        }
        most = block_max(t, most, scratch);
        for (std::int64_t j = low + t.thread(); j < high; j += t.threads())
            sum += expf(to_float(row[j]) + slope * (j - i) - most);
        sum = block_sum(t, sum, scratch);
        const float kept = 1.0f / (1.0f - shape.dropout);
        for (std::int64_t j = t.thread(); j < keys; j += t.threads()) {
            const float p =
                j >= low && j < high ? expf(to_float(row[j]) + slope * (j - i) - most) / sum : 0.0f;
            row[j] = from_float<T>(p);
            if (!dropped) continue;
            const auto element = static_cast<std::uint64_t>(
                ((shape.first_head + head) * shape.sequence() + i) * shape.sequence() + j);
            const bool drops = is_dropped(shape.dropout_keys[sample], element, threshold);
            mask[t.block() * keys + j] = drops ? 0 : 1;
            dropped[t.block() * keys + j] = from_float<T>(drops ? 0.0f : p * kept);
        }
    }
};

template <class T>
struct AttentionSoftmaxBackward {
    static constexpr bool is_cooperative = true;
    static constexpr int most_threads = 256;
    static constexpr const char* name = "attention_softmax_backward";
    AttentionShape shape;
    const T* probabilities;
    const std::uint8_t* mask;
    T* dp;

    template <class Thread>
    SMSIM_DEVICE float gradient(const Thread&, std::int64_t at) const {
        const float d = to_float(dp[at]);
        return mask ? (mask[at] ? d / (1.0f - shape.dropout) : 0.0f) : d;
    }
    template <class Thread>
    SMSIM_DEVICE void operator()(const Thread& t) const {
        float* scratch = t.template shared<float>();
        const std::int64_t base = t.block() * shape.key_count();
        float sum = 0;
        for (std::int64_t j = t.thread(); j < shape.key_count(); j += t.threads())
            sum += to_float(probabilities[base + j]) * gradient(t, base + j);
        sum = block_sum(t, sum, scratch);
        for (std::int64_t j = t.thread(); j < shape.key_count(); j += t.threads())
            dp[base + j] = from_float<T>(shape.scale * to_float(probabilities[base + j]) *
                                         (gradient(t, base + j) - sum));
    }
};

// Rotary position embedding, Su et al., arXiv 2104.09864, in the layout of GPT-NeoX and Llama (first half
// paired with second half).
template <class T>
struct Rotate {
    static constexpr const char* name = "rotate";
    RotationShape shape;
    float sign;
    const T* x;
    T* y;
    bool accumulates;

    // V divides what is turned of a head, half of it, and the head.
    template <int V>
    SMSIM_DEVICE void at(std::int64_t i) const {
        const std::int64_t width = (shape.heads + 2 * shape.kv_heads) * shape.head_dimension,
                           half = shape.dimension / 2;
        const Divided row = divide(i, width), head = divide(row.remainder, shape.head_dimension);
        const std::int64_t c = head.remainder;
        const Pack<T, V> own = load<T, V>(x + i);
        float out[V] = {};
        for (int j = 0; j < V; ++j) out[j] = to_float(own.at[j]);
        if (head.quotient < shape.heads + shape.kv_heads && c < shape.dimension) {
            const bool is_first = c < half;
            const Pack<T, V> other = load<T, V>(is_first ? x + i + half : x + i - half);
            const std::int64_t pair =
                position_of(shape.token_range, divide(row.quotient, shape.tokens).remainder) * half +
                (is_first ? c : c - half);
            const Pack<float, V> cosines = load<float, V>(shape.cosines + pair),
                                 sines = load<float, V>(shape.sines + pair);
            const float turn = is_first ? -sign : sign;
            for (int j = 0; j < V; ++j)
                out[j] = out[j] * cosines.at[j] + to_float(other.at[j]) * turn * sines.at[j];
        }
        put<T, V>(y + i, out, accumulates);
    }
};

// Both halves of what is turned of a query's or key's head, in place.
template <class T>
struct RotateInPlace {
    static constexpr const char* name = "rotate_in_place";
    RotationShape shape;
    float sign;
    T* x;

    // Of pair number i; V divides half of what is turned of a head, and the head.
    template <int V>
    SMSIM_DEVICE void at(std::int64_t i) const {
        const std::int64_t half = shape.dimension / 2, heads = shape.heads + shape.kv_heads;
        const Divided head = divide(i, half), row = divide(head.quotient, heads);
        T* const own = x + row.quotient * (heads + shape.kv_heads) * shape.head_dimension +
                       row.remainder * shape.head_dimension + head.remainder;
        const std::int64_t pair =
            position_of(shape.token_range, divide(row.quotient, shape.tokens).remainder) * half +
            head.remainder;
        const Pack<T, V> first = load<T, V>(own), second = load<T, V>(own + half);
        const Pack<float, V> cosines = load<float, V>(shape.cosines + pair),
                             sines = load<float, V>(shape.sines + pair);
        float left[V], right[V];
        for (int j = 0; j < V; ++j) {
            const float a = to_float(first.at[j]), b = to_float(second.at[j]);
            left[j] = a * cosines.at[j] + b * -sign * sines.at[j];
            right[j] = b * cosines.at[j] + a * sign * sines.at[j];
        }
        put<T, V>(own, left, false);
        put<T, V>(own + half, right, false);
    }
};

// Queries and keys of a tile, such that the largest of the kernels stays within the 64 KiB of shared memory
// that a block has on compute 7.5 (CUDA C++ programming guide, technical specifications by compute
// capability) up to a head dimension of 256.
constexpr int attention_tile(std::int64_t head_dimension) {
    return head_dimension <= 64 ? 32 : head_dimension <= 160 ? 16 : 8;
}
constexpr bool attention_tiles_fit(int greatest_head_dimension, std::size_t most_shared) {
    for (int d = 1; d <= greatest_head_dimension; ++d)
        if (AttentionKeyBackward<float>::shared(attention_tile(d), d + 1) > most_shared) return false;
    return true;
}
static_assert(attention_tiles_fit(256, std::size_t{64} * 1024));

template <class T>
AttentionTiles<T> attention_tiles(const AttentionShape& shape) {
    const int tile = attention_tile(shape.head_dimension);
    return {shape, tile, head_columns(shape) + 1, ceiling(shape.tokens, tile),
            ceiling(shape.key_count(), tile)};
}

inline void attention(Stream s, Type type, const AttentionShape& shape, const void* qkv, const void* memory,
                      void* y, float* log_sums) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        const AttentionTiles<T> a = attention_tiles<T>(shape);
        launch(s, a.tiles * shape.heads * shape.samples, 128, AttentionForward<T>::shared(a.tile, a.stride),
               AttentionForward<T>{a, threshold_of(shape.dropout), as<const T>(qkv),
                                   as<const T>(memory ? memory : qkv), as<T>(y), log_sums});
    });
}

inline void attention_backward(Stream s, Type type, const AttentionShape& shape, const void* qkv,
                               const void* memory, const void* y, const float* log_sums, const void* dy,
                               void* dqkv, void* dmemory, void* workspace) {
    auto* delta = as<float>(workspace);
    with_type(type, [&](auto t) {
        using T = decltype(t);
        const AttentionTiles<T> a = attention_tiles<T>(shape);
        const T *in = as<const T>(qkv), *keys = as<const T>(memory ? memory : qkv),
                *gradient = as<const T>(dy);
        T *out = as<T>(dqkv), *key_out = as<T>(memory ? dmemory : dqkv);
        launch(s, ceiling(shape.samples * shape.tokens * shape.heads, 4), 128, 0,
               AttentionDelta<T>{shape, as<const T>(y), gradient, delta});
        const AttentionGradients<T> gradients{a, threshold_of(shape.dropout), log_sums, delta};
        launch(s, a.key_tiles * shape.kv_heads * shape.samples, 128,
               AttentionKeyBackward<T>::shared(a.tile, a.stride),
               AttentionKeyBackward<T>{gradients, in, keys, gradient, key_out});
        launch(s, a.tiles * shape.heads * shape.samples, 128,
               AttentionQueryBackward<T>::shared(a.tile, a.stride),
               AttentionQueryBackward<T>{gradients, in, keys, gradient, out});
    });
}

inline void merge_attention(Stream s, Type type, const AttentionShape& shape, std::int64_t first,
                            std::int64_t count, const void* part, const float* part_sums, void* y,
                            float* log_sums) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        launch(s, ceiling(shape.samples * shape.heads * count, 4), 128, 0,
               MergeAttention<T>{shape, first, count, as<const T>(part), part_sums, as<T>(y), log_sums});
    });
}

inline void attention_softmax(Stream s, Type type, const AttentionShape& shape, void* scores, void* dropped,
                              std::uint8_t* mask) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        launch(s, shape.samples * shape.heads * shape.tokens, shape.key_count() > 512 ? 256 : 128,
               32 * sizeof(float),
               AttentionSoftmax<T>{shape, threshold_of(shape.dropout), as<T>(scores), as<T>(dropped), mask});
    });
}

inline void attention_softmax_backward(Stream s, Type type, const AttentionShape& shape,
                                       const void* probabilities, const std::uint8_t* mask, void* dp) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        launch(s, shape.samples * shape.heads * shape.tokens, shape.key_count() > 512 ? 256 : 128,
               32 * sizeof(float),
               AttentionSoftmaxBackward<T>{shape, as<const T>(probabilities), mask, as<T>(dp)});
    });
}

inline void rotate(Stream s, Type type, const RotationShape& shape, bool is_inverse, const void* x, void* y,
                   bool accumulates) {
    const std::int64_t count =
        shape.samples * shape.tokens * (shape.heads + 2 * shape.kv_heads) * shape.head_dimension;
    with_type(type, [&](auto t) {
        using T = decltype(t);
        constexpr int wide = 16 / sizeof(T);
        const Rotate<T> f{shape, is_inverse ? -1.0f : 1.0f, as<const T>(x), as<T>(y), accumulates};
        if (shape.head_dimension % wide == 0 && shape.dimension / 2 % wide == 0 &&
            are_aligned(16, x, y, shape.cosines, shape.sines))
            each<wide>(s, count, f);
        else each<1>(s, count, f);
    });
}

inline void rotate_in_place(Stream s, Type type, const RotationShape& shape, bool is_inverse, void* x) {
    const std::int64_t pairs =
        shape.samples * shape.tokens * (shape.heads + shape.kv_heads) * (shape.dimension / 2);
    with_type(type, [&](auto t) {
        using T = decltype(t);
        constexpr int wide = 16 / sizeof(T);
        const RotateInPlace<T> f{shape, is_inverse ? -1.0f : 1.0f, as<T>(x)};
        if (shape.head_dimension % wide == 0 && shape.dimension / 2 % wide == 0 &&
            are_aligned(16, x, shape.cosines, shape.sines))
            each<wide>(s, pairs, f);
        else each<1>(s, pairs, f);
    });
}

template <class T>
struct MoveColumns {
    static constexpr const char* name = "move_columns";
    ColumnMove move;
    const T* from;
    T* to;
    bool accumulates;
    template <int V>
    SMSIM_DEVICE void at(std::int64_t i) const {
        const Divided index = divide(i, move.width), row = divide(index.quotient, move.rows);
        const Pack<T, V> in = load<T, V>(from + row.quotient * move.from_sample +
                                         row.remainder * move.from_row + index.remainder);
        float out[V];
        for (int j = 0; j < V; ++j) out[j] = to_float(in.at[j]);
        put<T, V>(to + row.quotient * move.to_sample + row.remainder * move.to_row + index.remainder, out,
                  accumulates);
    }
};

template <class T>
struct OrderParts {
    static constexpr const char* name = "order_parts";
    std::int64_t samples, tokens, degree, width;
    bool is_inverse;
    const T* x;
    T* y;
    template <int V>
    SMSIM_DEVICE void at(std::int64_t i) const {
        const std::int64_t part = tokens / (2 * degree);
        const Divided index = divide(i, width), token = divide(index.quotient, tokens),
                      piece = divide(token.remainder, part);
        const bool is_front = piece.quotient < degree;
        const std::int64_t rank = is_front ? piece.quotient : 2 * degree - 1 - piece.quotient;
        const std::int64_t apart =
            (((rank * samples + token.quotient) * 2 + (is_front ? 0 : 1)) * part + piece.remainder) * width +
            index.remainder;
        store<T, V>(y + (is_inverse ? apart : i), load<T, V>(x + (is_inverse ? i : apart)));
    }
};

inline void move_columns(Stream s, Type type, const ColumnMove& move, const void* from, void* to,
                         bool accumulates) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        constexpr int wide = 16 / sizeof(T);
        const MoveColumns<T> f{move, as<const T>(from), as<T>(to), accumulates};
        const bool are_wide = move.from_row % wide == 0 && move.to_row % wide == 0 &&
                              move.from_sample % wide == 0 && move.to_sample % wide == 0;
        if (are_wide) each_in_rows<T>(s, move.samples * move.rows, move.width, f, from, to);
        else each<1>(s, move.samples * move.rows * move.width, f);
    });
}

inline void order_parts(Stream s, Type type, std::int64_t samples, std::int64_t tokens, std::int64_t degree,
                        std::int64_t width, bool is_inverse, const void* x, void* y) {
    with_type(type, [&](auto t) {
        using T = decltype(t);
        each_in_rows<T>(s, samples * tokens, width,
                        OrderParts<T>{samples, tokens, degree, width, is_inverse, as<const T>(x), as<T>(y)},
                        x, y);
    });
}

inline void fill_attention(Kernels& table) {
    table.move_columns = move_columns;
    table.order_parts = order_parts;
    table.rotate = rotate;
    table.rotate_in_place = rotate_in_place;
    table.attention = attention;
    table.merge_attention = merge_attention;
    table.attention_backward = attention_backward;
    table.attention_softmax = attention_softmax;
    table.attention_softmax_backward = attention_softmax_backward;
}

}  // namespace exec::cuda::kernel_body
