// Attention as launches: the library's fused kernels, our own, or unfused as products of heads.
#include <cmath>

#include <fmt/core.h>

#include "exec/cuda/operator/fused_parts.h"
#include "exec/cuda/operator/operators.h"
#include "model/operators/rank_share.h"

namespace exec::cuda {

namespace {

// One matrix for every head that has keys of its own: where the first one begins, what its rows and what the
// matrices lie apart.
struct HeadMatrices {
    void* first = nullptr;
    std::int64_t row = 0, head = 0;
};

// Heads g, g + group, ... of a sample, which are one batched product: a group of query heads shares keys and
// values.
struct HeadGroup {
    const AttentionShape& shape;
    Type type;
    std::int64_t sample, g;

    std::int64_t group() const { return shape.heads / shape.kv_heads; }
    HeadMatrices packed(const void* qkv, std::int64_t head, std::int64_t apart) const {
        const std::int64_t d = shape.head_dimension;
        return {at(const_cast<void*>(qkv), sample * shape.tokens * shape.row() + head * d, type), shape.row(),
                apart * d};
    }
    HeadMatrices queries(const void* qkv) const { return packed(qkv, g, group()); }
    // Of keys and values in rows of their own, or behind the queries.
    HeadMatrices keys(const void* memory, std::int64_t heads_before = 0) const {
        const std::int64_t d = shape.head_dimension;
        if (shape.keys == 0) return packed(memory, shape.heads + heads_before, 1);
        return {at(const_cast<void*>(memory), sample * shape.keys * shape.key_row() + heads_before * d, type),
                shape.key_row(), d};
    }
    HeadMatrices values(const void* memory) const { return keys(memory, shape.kv_heads); }
    HeadMatrices output(const void* y) const {
        const std::int64_t d = shape.head_dimension;
        return {at(const_cast<void*>(y), (sample * shape.tokens * shape.heads + g) * d, type),
                shape.heads * d, group() * d};
    }
    HeadMatrices scores(const void* s) const {
        const std::int64_t size = shape.tokens * shape.key_count();
        return {at(const_cast<void*>(s), (sample * shape.heads + g) * size, type), shape.key_count(),
                group() * size};
    }
    // c (+)= op(a) op(b), m x n x k; a transposed has a row for each key, else one for each query.
    Product product(Product p, const HeadMatrices& a, bool transpose_a, const HeadMatrices& b,
                    bool transpose_b, const HeadMatrices& c, std::int64_t n, std::int64_t k,
                    bool accumulates = false) const {
        p.transpose_a = transpose_a;
        p.transpose_b = transpose_b;
        p.m = transpose_a ? shape.key_count() : shape.tokens;
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
        for (std::int64_t g = 0; g < shape.heads / shape.kv_heads; ++g)
            call(HeadGroup{shape, type, sample, g});
}

// The same turn for keys and values in rows of their own.
RotationShape of_keys(RotationShape rotation, const AttentionShape& shape) {
    rotation.tokens = shape.keys;
    rotation.heads = 0;
    rotation.token_range = shape.key_range;
    return rotation;
}

// What unfused attention keeps for backward, one behind the other.
struct KeptScores {
    void *probabilities, *dropped;  // dropped and mask: null without dropout
    std::uint8_t* mask;

    KeptScores(const AttentionShape& shape, void* saved_context, Type type)
        : probabilities(saved_context), dropped(nullptr), mask(nullptr) {
        if (shape.dropout <= 0) return;
        const std::int64_t scores = shape.samples * shape.heads * shape.tokens * shape.key_count();
        dropped = at(saved_context, scores, type);
        mask = static_cast<std::uint8_t*>(at(saved_context, 2 * scores, type));
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
    if (model::gathers_keys(o, context_)) {  // the group's keys, and this rank's queries
        shape.keys = shape.tokens;
        shape.tokens /= context_.context_parallel;
        shape.token_range = token_range();
    }
    if (model::passes_keys(o, context_)) {  // one rank's keys
        shape.whole_sequence = shape.tokens;
        shape.tokens /= context_.context_parallel;
        shape.keys = shape.tokens;
        shape.token_range = token_range();
    }
    const model::AttentionShape share = model::attention_shape(graph_, o, context_);
    shape.heads = share.heads;
    shape.kv_heads = share.kv_heads;
    shape.head_dimension = a.head_dimension;
    shape.is_causal = a.is_causal;
    shape.window = a.window;
    shape.scale = static_cast<float>(
        a.softmax_scale > 0 ? a.softmax_scale : 1.0 / std::sqrt(static_cast<double>(a.head_dimension)));
    // Of the tensor-parallel rank's heads a share, where they are exchanged.
    const std::int64_t first_of_own = model::exchanges_heads(o, context_) ? context_rank_ * shape.heads : 0;
    shape.first_head =
        (o.in_parallel_region ? tensor_rank_ * model::rank_heads(o, a.heads, context_) : 0) + first_of_own;
    if (!graph_.part.is_whole()) {
        shape.whole_sequence = graph_.sequence_tokens();
        if (graph_.part.index > 0) shape.keys = graph_.first_token() + shape.tokens;
        shape.token_range = token_range();
    }
    if (const AttentionTables::Of* tables = tables_->find(id))
        shape.alibi_slopes = tables->slopes ? tables->slopes + first_of_own : nullptr;
    if (a.probability > 0 && is_training_) {
        shape.dropout = static_cast<float>(a.probability);
        shape.dropout_keys = execution_.mask_keys(id, micro_batch);
        shape.library_offset = execution_.library_offset();
    }
    return shape;
}

AttentionShape Operators::attention_shape(model::OperatorId id, const Operands& x,
                                          std::int32_t micro_batch) const {
    AttentionShape shape = attention_shape(id, micro_batch);
    if (x.key_rank) shape.key_range = token_range_of(*x.key_rank);
    return shape;
}

RotationShape Operators::rotation_shape(model::OperatorId id, const AttentionShape& shape) const {
    const AttentionTables::Of* tables = tables_->find(id);
    if (!tables) return {};
    return {shape.samples,   shape.tokens,         shape.heads,
            shape.kv_heads,  shape.head_dimension, tables->rotary_dimension,
            tables->cosines, tables->sines,        shape.token_range};
}

// Of arrays that a linear layer writes and attention alone reads. Segments and context parallelism take keys
// that are not turned from them.
bool Operators::turns_in_place(model::OperatorId id, const AttentionShape& shape,
                               const RotationShape& rotation) const {
    const model::TensorId packed = op(id).inputs[0];
    const model::Tensor& tensor = graph_.tensor(packed);
    if (rotation.dimension == 0 || shape.keys > 0 || !graph_.part.is_whole() ||
        context_.context_parallel > 1 || tensor.consumers.size() != 1 ||
        op(tensor.producer).kind != model::OperatorKind::linear)
        return false;
    const std::int64_t tokens = shape.samples * shape.tokens;
    return is_fused(Fused::rotation, {false, tokens, shape.row()}, [&] {
        const std::size_t array = tokens * shape.row() * size_of(type_), copy = (array + 255) / 256 * 256;
        Alternatives result{
            fmt::format("rotation:{}:{}:{}:{}:{}:{}", static_cast<int>(type_), tokens, shape.heads,
                        shape.kv_heads, shape.head_dimension, rotation.dimension),
            2 * copy + (shape.tokens * rotation.dimension) * sizeof(float),
            {},
            {}};
        const auto of_room = [rotation, copy](const char* room) {
            RotationShape own = rotation;
            own.cosines = own.sines = reinterpret_cast<const float*>(room + 2 * copy);
            own.token_range = {};
            return own;
        };
        // Forward and backward of one layer.
        result.fused = [type = type_, of_room](const Kernels& k, Stream s, char* room) {
            for (const bool is_inverse : {false, true})
                k.rotate_in_place(s, type, of_room(room), is_inverse, room);
        };
        result.apart = [type = type_, of_room, copy](const Kernels& k, Stream s, char* room) {
            for (const bool is_inverse : {false, false, true})
                k.rotate(s, type, of_room(room), is_inverse, room, room + copy, false);
        };
        return result;
    });
}

Operators::AttentionInput Operators::attention_input(model::OperatorId id, const Operands& x,
                                                     const AttentionShape& shape,
                                                     const RotationShape& rotation,
                                                     std::int32_t micro_batch) const {
    const void* memory = x.earlier.empty() ? x.keys.data() : joined_keys(x, shape);
    if (rotation.dimension == 0) return {x.inputs[0].data(), memory};
    const Stream s = execution_.stream();
    if (turns_in_place(id, shape, rotation)) {
        if (turned_.insert({id.index, micro_batch}).second) {
            execution_.writes(x.inputs[0].data());
            kernels_.rotate_in_place(s, type_, rotation, false, x.inputs[0].data());
        }
        return {x.inputs[0].data(), nullptr};
    }
    void* turned =
        execution_.scratch(turned_slot, (shape.samples * shape.tokens * shape.row()) * size_of(type_));
    kernels_.rotate(s, type_, rotation, false, x.inputs[0].data(), turned, false);
    if (shape.keys == 0) return {turned, nullptr};
    void* keys =
        execution_.scratch(turned_keys_slot, (shape.samples * shape.keys * shape.key_row()) * size_of(type_));
    kernels_.rotate(s, type_, of_keys(rotation, shape), false, memory, keys, false);
    return {turned, keys};
}

ColumnMove Operators::key_rows(const AttentionShape& shape, std::int64_t from_row, std::int64_t from_tokens,
                               std::int64_t to_row, std::int64_t to_tokens) const {
    return {shape.samples,     shape.tokens,           2 * shape.kv_heads * shape.head_dimension,
            from_row,          from_tokens * from_row, to_row,
            to_tokens * to_row};
}

const void* Operators::joined_keys(const Operands& x, const AttentionShape& shape) const {
    const Stream s = execution_.stream();
    const std::int64_t width = shape.key_row();
    void* joined =
        execution_.scratch(joined_keys_slot, (shape.samples * shape.keys * width) * size_of(type_));
    std::int64_t first = 0;
    const auto join = [&](const void* from, std::int64_t row) {
        kernels_.move_columns(s, type_, key_rows(shape, row, shape.tokens, width, shape.keys), from,
                              at(joined, first * width, type_), false);
        first += shape.tokens;
    };
    for (const KeyValues& segment : x.earlier) join(segment.first.data(), segment.stride);
    join(at(x.inputs[0].data(), shape.heads * shape.head_dimension, type_), shape.row());
    return joined;
}

void Operators::add_joined_gradients(const Operands& x, const AttentionShape& shape, const void* joined,
                                     void* dqkv) const {
    const Stream s = execution_.stream();
    const std::int64_t width = 2 * shape.kv_heads * shape.head_dimension;
    std::int64_t first = 0;
    for (const KeyValues& segment : x.earlier_gradients) {
        const bool adds = !execution_.takes_over_zeros(
            segment.first.data(), (shape.samples * shape.tokens * width) * size_of(type_));
        kernels_.move_columns(s, type_, key_rows(shape, width, shape.keys, width, shape.tokens),
                              at(joined, first * width, type_), segment.first.data(), adds);
        first += shape.tokens;
    }
    void* own = at(dqkv, shape.heads * shape.head_dimension, type_);
    if (!x.earlier_gradients.empty())
        kernels_.move_columns(s, type_, key_rows(shape, width, shape.keys, shape.row(), shape.tokens),
                              at(joined, first * width, type_), own, true);
    if (x.later_gradient)
        kernels_.move_columns(s, type_, key_rows(shape, width, shape.tokens, shape.row(), shape.tokens),
                              x.later_gradient.data(), own, true);
}

bool Operators::fuses_attention(const AttentionShape& shape) const {
    const std::optional<core::Unsupported> unsupported = fused_attention_unsupported(machine_, type_, shape);
    kernel_choices_.insert({"attention", unsupported ? "own kernel" : "cuDNN",
                            unsupported ? unsupported->reason : std::string()});
    return !unsupported;
}

void Operators::attention(model::OperatorId id, const Operands& x, std::int32_t micro_batch) const {
    const AttentionShape shape = attention_shape(id, x, micro_batch);
    const AttentionInput in = attention_input(id, x, shape, rotation_shape(id, shape), micro_batch);
    if (context_.attention != model::AttentionImplementation::flash)
        unfused_attention(shape, in, x.output.data(), x.saved_context.data());
    else if (x.key_rank && *x.key_rank != context_rank_)
        attend_to_others(shape, in, x.output.data(), x.saved_context.as<float>());
    else attend(shape, in, x.output.data(), x.saved_context.as<float>());
}

void Operators::attend(const AttentionShape& shape, const AttentionInput& in, void* y,
                       float* log_sums) const {
    const Stream s = execution_.stream();
    if (fuses_attention(shape))
        fused_attention(machine_, s, type_, shape, in.queries, in.memory, y, log_sums);
    else kernels_.attention(s, type_, shape, in.queries, in.memory, y, log_sums);
}

// In a ring, to tokens of another rank: merged into what came of others. Sums lie as those of y do, by part
// where a library computes parts.
void Operators::attend_to_others(const AttentionShape& shape, const AttentionInput& in, void* y,
                                 float* log_sums) const {
    const std::int64_t rows = shape.samples * shape.tokens * shape.heads;
    const std::size_t array = (rows * shape.head_dimension * size_of(type_) + 255) / 256 * 256;
    auto* const part = static_cast<char*>(execution_.scratch(ring_slot, array + rows * sizeof(float)));
    auto* const sums = reinterpret_cast<float*>(part + array);
    attend(shape, in, part, sums);
    const auto merge = [&](std::int64_t first, std::int64_t count) {
        const std::int64_t at = shape.samples * shape.heads * first;
        kernels_.merge_attention(execution_.stream(), type_, shape, first, count, part, sums + at, y,
                                 log_sums + at);
    };
    if (!fuses_attention(shape)) return merge(0, shape.tokens);
    for (const FusedPart& one : fused_parts(shape)) merge(one.first_query, one.shape.queries);
}

void Operators::attention_backward(model::OperatorId id, const Operands& x, const void* dy,
                                   const TensorView& dqkv, std::int32_t micro_batch) const {
    const AttentionShape shape = attention_shape(id, x, micro_batch);
    const RotationShape rotation = rotation_shape(id, shape);
    const Stream s = execution_.stream();
    const std::int64_t count = shape.samples * shape.tokens * shape.row();
    const std::size_t bytes = count * size_of(type_);
    const AttentionInput in = attention_input(id, x, shape, rotation, micro_batch);
    const bool adds = accumulates(dqkv), turns = rotation.dimension > 0;
    const bool turns_back_in_place = turns && !adds && turns_in_place(id, shape, rotation);
    void* result =
        (turns && !turns_back_in_place) || adds ? execution_.scratch(gradient_slot, bytes) : dqkv.data();
    // Keys and values of their own have a gradient of their own, which goes to the ranks or parts that
    // they came from.
    const std::int64_t key_elements = shape.samples * shape.keys * shape.key_row();
    const std::size_t key_bytes = key_elements * size_of(type_);
    const bool is_joined = !x.earlier.empty(),
               adds_keys =
                   shape.keys > 0 && !is_joined && !execution_.takes_over_zeros(x.dkeys.data(), key_bytes);
    void* key_result = shape.keys > 0 && (turns || adds_keys || is_joined)
                           ? execution_.scratch(key_gradient_slot, key_bytes)
                           : x.dkeys.data();
    if (shape.keys > 0) machine_.fill_zero(s, result, bytes);
    if (context_.attention != model::AttentionImplementation::flash) {
        unfused_attention_backward(shape, in, x.saved_context.data(), dy, result, key_result);
    } else if (fuses_attention(shape)) {
        const std::size_t room = fused_workspace(shape, type_);
        fused_attention_backward(machine_, s, type_, shape, in.queries, in.memory, x.output.data(),
                                 x.saved_context.as<float>(), dy, result, key_result,
                                 room > 0 ? execution_.scratch(attention_slot, room) : nullptr);
    } else {
        void* deltas =
            execution_.scratch(attention_slot, (shape.samples * shape.heads * shape.tokens) * sizeof(float));
        kernels_.attention_backward(s, type_, shape, in.queries, in.memory, x.output.data(),
                                    x.saved_context.as<float>(), dy, result, key_result, deltas);
    }
    if (turns_back_in_place) kernels_.rotate_in_place(s, type_, rotation, true, dqkv.data());
    else if (turns) kernels_.rotate(s, type_, rotation, true, result, dqkv.data(), adds);
    else if (adds) kernels_.scale(s, type_, count, 1.0f, result, dqkv.data(), true);
    if (is_joined && turns) {  // the keys as they were joined have been read for the last time
        void* joined = execution_.scratch(joined_keys_slot, key_bytes);
        kernels_.rotate(s, type_, of_keys(rotation, shape), true, key_result, joined, false);
        key_result = joined;
    }
    if (!graph_.part.is_whole()) return add_joined_gradients(x, shape, key_result, dqkv.data());
    if (shape.keys == 0) return;
    if (turns)
        kernels_.rotate(s, type_, of_keys(rotation, shape), true, key_result, x.dkeys.data(), adds_keys);
    else if (adds_keys) kernels_.scale(s, type_, key_elements, 1.0f, key_result, x.dkeys.data(), true);
}

void Operators::unfused_attention(const AttentionShape& shape, const AttentionInput& in, void* y,
                                  void* saved_context) const {
    const Stream s = execution_.stream();
    const std::int64_t n = shape.key_count(), d = shape.head_dimension;
    const void *qkv = in.queries, *memory = in.memory ? in.memory : in.queries;
    const KeptScores kept(shape, saved_context, type_);
    Product scaled = product();
    scaled.alpha = shape.scale;
    each_group(shape, type_, [&](const HeadGroup& h) {
        machine_.product(s, h.product(scaled, h.queries(qkv), false, h.keys(memory), true,
                                      h.scores(kept.probabilities), n, d));
    });
    kernels_.attention_softmax(s, type_, shape, kept.probabilities, kept.dropped, kept.mask);
    each_group(shape, type_, [&](const HeadGroup& h) {
        machine_.product(s, h.product(product(), h.scores(kept.factors()), false, h.values(memory), false,
                                      h.output(y), d, n));
    });
}

// Of what a group of heads shares, the first head writes the gradient and the others add.
void Operators::unfused_attention_backward(const AttentionShape& shape, const AttentionInput& in,
                                           void* saved_context, const void* dy, void* dqkv,
                                           void* dmemory) const {
    const Stream s = execution_.stream();
    const std::int64_t n = shape.key_count(), d = shape.head_dimension;
    const void *qkv = in.queries, *memory = in.memory ? in.memory : in.queries;
    void* dkeys = in.memory ? dmemory : dqkv;
    const KeptScores kept(shape, saved_context, type_);
    void* ds =
        execution_.scratch(attention_slot, (shape.samples * shape.heads * shape.tokens * n) * size_of(type_));
    each_group(shape, type_, [&](const HeadGroup& h) {
        machine_.product(s, h.product(product(), h.scores(kept.factors()), true, h.output(dy), false,
                                      h.values(dkeys), d, shape.tokens, h.g > 0));
        machine_.product(
            s, h.product(product(), h.output(dy), false, h.values(memory), true, h.scores(ds), n, d));
    });
    kernels_.attention_softmax_backward(s, type_, shape, kept.probabilities, kept.mask, ds);
    each_group(shape, type_, [&](const HeadGroup& h) {
        machine_.product(
            s, h.product(product(), h.scores(ds), false, h.keys(memory), false, h.queries(dqkv), d, n));
        machine_.product(s, h.product(product(), h.scores(ds), true, h.queries(qkv), false, h.keys(dkeys), d,
                                      shape.tokens, h.g > 0));
    });
}

void Operators::pack_keys(model::OperatorId id, ConstTensorView packed, TensorView piece) const {
    const AttentionShape shape = attention_shape(id, 0);
    const std::int64_t width = 2 * shape.kv_heads * shape.head_dimension;
    kernels_.move_columns(execution_.stream(), type_,
                          key_rows(shape, shape.row(), shape.tokens, width, shape.tokens),
                          at(packed.data(), shape.heads * shape.head_dimension, type_), piece.data(), false);
}

void Operators::order_keys(model::OperatorId id, ConstTensorView pieces, TensorView keys) const {
    const AttentionShape shape = attention_shape(id, 0);
    kernels_.order_parts(execution_.stream(), type_, shape.samples, shape.keys, context_.context_parallel,
                         shape.key_row(), false, pieces.data(), keys.data());
}

void Operators::split_key_gradients(model::OperatorId id, ConstTensorView dkeys, TensorView pieces) const {
    const AttentionShape shape = attention_shape(id, 0);
    kernels_.order_parts(execution_.stream(), type_, shape.samples, shape.keys, context_.context_parallel,
                         shape.key_row(), true, dkeys.data(), pieces.data());
}

void Operators::move_heads(model::OperatorId id, HeadMove move, ConstTensorView from, TensorView to) const {
    const AttentionShape shape = attention_shape(id, 0);
    const std::int64_t ranks = context_.context_parallel, heads = shape.heads * shape.head_dimension,
                       keys = shape.kv_heads * shape.head_dimension,
                       width = move.is_output ? heads : heads + 2 * keys;
    const Stream s = execution_.stream();
    execution_.clear_zeros(const_cast<void*>(from.data()), from.bytes());
    if (move.has_all_tokens)
        return kernels_.order_parts(s, type_, shape.samples, shape.tokens, ranks, width, move.to_shares,
                                    from.data(), to.data());
    // Of a row the columns of queries, keys and values, so many of each rank.
    const std::int64_t tokens = shape.tokens / ranks, row = ranks * width;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
        std::int64_t in_row = 0, in_share = rank * shape.samples * tokens * width;
        for (const std::int64_t count : {heads, keys, keys}) {
            const std::int64_t own = in_row + rank * count;
            if (move.to_shares)
                kernels_.move_columns(
                    s, type_, {shape.samples, tokens, count, row, tokens * row, width, tokens * width},
                    at(from.data(), own, type_), at(to.data(), in_share, type_), false);
            else
                kernels_.move_columns(
                    s, type_, {shape.samples, tokens, count, width, tokens * width, row, tokens * row},
                    at(from.data(), in_share, type_), at(to.data(), own, type_), false);
            in_row += ranks * count;
            in_share += count;
            if (move.is_output) break;
        }
    }
}

void Operators::unpack_keys(model::OperatorId id, ConstTensorView piece, TensorView packed) const {
    const AttentionShape shape = attention_shape(id, 0);
    const std::int64_t width = 2 * shape.kv_heads * shape.head_dimension;
    kernels_.move_columns(execution_.stream(), type_,
                          key_rows(shape, width, shape.tokens, shape.row(), shape.tokens), piece.data(),
                          at(packed.data(), shape.heads * shape.head_dimension, type_), false);
}

void Operators::add_key_gradients(model::OperatorId id, ConstTensorView piece, TensorView dpacked) const {
    const AttentionShape shape = attention_shape(id, 0);
    execution_.clear_zeros(dpacked.data(), dpacked.bytes());
    const std::int64_t width = 2 * shape.kv_heads * shape.head_dimension;
    kernels_.move_columns(execution_.stream(), type_,
                          key_rows(shape, width, shape.tokens, shape.row(), shape.tokens), piece.data(),
                          at(dpacked.data(), shape.heads * shape.head_dimension, type_), true);
}

}  // namespace exec::cuda
