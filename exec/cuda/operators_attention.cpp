// Attention as launches: the library's fused kernels, our own, or unfused as products of heads.
#include <cmath>

#include "exec/cuda/operators.h"
#include "model/rank_share.h"

namespace exec::cuda {

namespace {

void* at(void* base, std::int64_t element, Type type) { return static_cast<char*>(base) + element * static_cast<std::int64_t>(size_of(type)); }

// One matrix for every head that has keys of its own: where the first one begins, what its rows and what the matrices lie apart.
struct HeadMatrices {
    void* first = nullptr;
    std::int64_t row = 0, head = 0;
};

// Heads g, g + group, ... of a sample, which are one batched product: a group of query heads shares keys and values.
struct HeadGroup {
    const AttentionShape& shape;
    Type type;
    std::int64_t sample, g;

    std::int64_t group() const { return shape.heads / shape.kv_heads; }
    HeadMatrices packed(const void* qkv, std::int64_t head, std::int64_t apart) const {
        const std::int64_t d = shape.head_dimension;
        return {at(const_cast<void*>(qkv), sample * shape.tokens * shape.row() + head * d, type), shape.row(), apart * d};
    }
    HeadMatrices queries(const void* qkv) const { return packed(qkv, g, group()); }
    HeadMatrices keys(const void* qkv) const { return packed(qkv, shape.heads, 1); }
    HeadMatrices values(const void* qkv) const { return packed(qkv, shape.heads + shape.kv_heads, 1); }
    HeadMatrices output(const void* y) const {
        const std::int64_t d = shape.head_dimension;
        return {at(const_cast<void*>(y), (sample * shape.tokens * shape.heads + g) * d, type), shape.heads * d, group() * d};
    }
    HeadMatrices scores(const void* s) const {
        const std::int64_t square = shape.tokens * shape.tokens;
        return {at(const_cast<void*>(s), (sample * shape.heads + g) * square, type), shape.tokens, group() * square};
    }
    // c (+)= op(a) op(b), m x n x k.
    Product product(Product p, const HeadMatrices& a, bool transpose_a, const HeadMatrices& b, bool transpose_b, const HeadMatrices& c, std::int64_t n,
                    std::int64_t k, bool accumulates = false) const {
        p.transpose_a = transpose_a;
        p.transpose_b = transpose_b;
        p.m = shape.tokens;
        p.n = n;
        p.k = k;
        p.a = a.first;
        p.lda = a.row;
        p.stride_a = a.head;
        p.b = b.first;
        p.ldb = b.row;
        p.stride_b = b.head;
        p.c = c.first;
        p.ldc = c.row;
        p.stride_c = c.head;
        p.batch = shape.kv_heads;
        p.accumulates = accumulates;
        return p;
    }
};

template <class Call>
void each_group(const AttentionShape& shape, Type type, const Call& call) {
    for (std::int64_t sample = 0; sample < shape.samples; ++sample)
        for (std::int64_t g = 0; g < shape.heads / shape.kv_heads; ++g) call(HeadGroup{shape, type, sample, g});
}

// What unfused attention keeps for backward, one behind the other.
struct KeptScores {
    void *probabilities, *dropped;  // dropped and mask: null without dropout
    std::uint8_t* mask;

    KeptScores(const AttentionShape& shape, void* extra, Type type) : probabilities(extra), dropped(nullptr), mask(nullptr) {
        if (shape.dropout <= 0) return;
        const std::int64_t scores = shape.samples * shape.heads * shape.tokens * shape.tokens;
        dropped = at(extra, scores, type);
        mask = static_cast<std::uint8_t*>(at(extra, 2 * scores, type));
    }
    const void* factors() const { return dropped ? dropped : probabilities; }  // what multiplies the values
};

}  // namespace

AttentionShape Operators::attention_shape(model::OperatorId id, std::int32_t micro_batch) const {
    const model::Operator& o = op(id);
    const model::Attributes& a = o.attributes;
    AttentionShape shape;
    shape.samples = context_.micro_batch;
    shape.tokens = graph_.tensor(o.inputs[0]).shape[0];
    shape.heads = model::rank_heads(o, a.heads, context_);
    shape.kv_heads = model::rank_heads(o, a.kv_heads, context_);
    shape.head_dimension = a.head_dimension;
    shape.is_causal = a.is_causal;
    shape.window = a.window;
    shape.scale = static_cast<float>(a.softmax_scale > 0 ? a.softmax_scale : 1.0 / std::sqrt(static_cast<double>(a.head_dimension)));
    shape.first_head = o.in_parallel_region ? tensor_rank_ * shape.heads : 0;
    if (const auto tables = tables_.find(id.index); tables != tables_.end()) shape.alibi_slopes = tables->second.slopes;
    if (a.probability > 0 && is_training_) {
        shape.dropout = static_cast<float>(a.probability);
        shape.dropout_keys = workplace_.mask_keys(id, micro_batch);
    }
    return shape;
}

RotationShape Operators::rotation_shape(model::OperatorId id, const AttentionShape& shape) const {
    const auto tables = tables_.find(id.index);
    if (tables == tables_.end()) return {};
    return {shape.samples,  shape.tokens, shape.heads, shape.kv_heads, shape.head_dimension, tables->second.rotary_dimension, tables->second.cosines,
            tables->second.sines};
}

void Operators::attention(model::OperatorId id, const Operands& x, std::int32_t micro_batch) const {
    const AttentionShape shape = attention_shape(id, micro_batch);
    const Stream s = workplace_.stream();
    const void* qkv = x.inputs[0];
    if (const RotationShape rotation = rotation_shape(id, shape); rotation.dimension > 0) {
        void* turned = workplace_.scratch(turned_slot, static_cast<std::size_t>(shape.samples * shape.tokens * shape.row()) * size_of(type_));
        kernels_.rotate(s, type_, rotation, false, qkv, turned, false);
        qkv = turned;
    }
    if (context_.attention != model::AttentionImplementation::flash) unfused_attention(shape, qkv, x.output, x.extra);
    else if (machine_.fuses(type_, shape)) machine_.fused_attention(s, type_, shape, qkv, x.output, static_cast<float*>(x.extra));
    else kernels_.attention(s, type_, shape, qkv, x.output, static_cast<float*>(x.extra));
}

void Operators::attention_backward(model::OperatorId id, const Operands& x, const float* dy, float* dqkv, std::int32_t micro_batch) const {
    const AttentionShape shape = attention_shape(id, micro_batch);
    const RotationShape rotation = rotation_shape(id, shape);
    const Stream s = workplace_.stream();
    const std::int64_t count = shape.samples * shape.tokens * shape.row();
    const std::size_t bytes = static_cast<std::size_t>(count) * size_of(type_);
    const bool adds = accumulates(op(id).inputs[0], dqkv);
    const void* qkv = x.inputs[0];
    void* result = dqkv;
    if (rotation.dimension > 0) {
        void* turned = workplace_.scratch(turned_slot, bytes);
        kernels_.rotate(s, type_, rotation, false, qkv, turned, false);
        qkv = turned;
    }
    if (rotation.dimension > 0 || adds) result = workplace_.scratch(gradient_slot, bytes);
    if (context_.attention != model::AttentionImplementation::flash) {
        unfused_attention_backward(shape, qkv, x.extra, dy, result);
    } else if (machine_.fuses(type_, shape)) {
        machine_.fused_attention_backward(s, type_, shape, qkv, x.output, static_cast<const float*>(x.extra), dy, result);
    } else {
        void* deltas = workplace_.scratch(attention_slot, static_cast<std::size_t>(shape.samples * shape.heads * shape.tokens) * sizeof(float));
        kernels_.attention_backward(s, type_, shape, qkv, x.output, static_cast<const float*>(x.extra), dy, result, deltas);
    }
    if (rotation.dimension > 0) kernels_.rotate(s, type_, rotation, true, result, dqkv, adds);
    else if (adds) kernels_.scale(s, type_, count, 1.0f, result, dqkv, true);
}

void Operators::unfused_attention(const AttentionShape& shape, const void* qkv, void* y, void* extra) const {
    const Stream s = workplace_.stream();
    const std::int64_t n = shape.tokens, d = shape.head_dimension;
    const KeptScores kept(shape, extra, type_);
    Product scaled = product();
    scaled.alpha = shape.scale;
    each_group(shape, type_, [&](const HeadGroup& h) {
        machine_.product(s, h.product(scaled, h.queries(qkv), false, h.keys(qkv), true, h.scores(kept.probabilities), n, d));
    });
    kernels_.attention_softmax(s, type_, shape, kept.probabilities, kept.dropped, kept.mask);
    each_group(shape, type_, [&](const HeadGroup& h) {
        machine_.product(s, h.product(product(), h.scores(kept.factors()), false, h.values(qkv), false, h.output(y), d, n));
    });
}

// Of what a group of heads shares, the first head writes the gradient and the others add.
void Operators::unfused_attention_backward(const AttentionShape& shape, const void* qkv, void* extra, const void* dy, void* dqkv) const {
    const Stream s = workplace_.stream();
    const std::int64_t n = shape.tokens, d = shape.head_dimension;
    const KeptScores kept(shape, extra, type_);
    void* ds = workplace_.scratch(attention_slot, static_cast<std::size_t>(shape.samples * shape.heads * n * n) * size_of(type_));
    each_group(shape, type_, [&](const HeadGroup& h) {
        machine_.product(s, h.product(product(), h.scores(kept.factors()), true, h.output(dy), false, h.values(dqkv), d, n, h.g > 0));
        machine_.product(s, h.product(product(), h.output(dy), false, h.values(qkv), true, h.scores(ds), n, d));
    });
    kernels_.attention_softmax_backward(s, type_, shape, kept.probabilities, kept.mask, ds);
    each_group(shape, type_, [&](const HeadGroup& h) {
        machine_.product(s, h.product(product(), h.scores(ds), false, h.keys(qkv), false, h.queries(dqkv), d, n));
        machine_.product(s, h.product(product(), h.scores(ds), true, h.queries(qkv), false, h.keys(dqkv), d, n, h.g > 0));
    });
}

}  // namespace exec::cuda
