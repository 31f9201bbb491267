// Attention: tables of rotary positions, biases and slopes; keys of earlier parts of a sequence and of
// other ranks.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "core/index/integers.h"
#include "exec/cpu/head_norms.h"
#include "exec/cpu/kernels.h"
#include "exec/cpu/operators.h"
#include "model/operators/alibi.h"
#include "model/operators/rank_share.h"

namespace exec::cpu {

using model::OperatorKind;

namespace {

// T5's bucket of a distance (Raffel et al., arXiv 1910.10683, section 2.1): half of the buckets tell near
// distances apart, the others grow with the logarithm up to `distance`; without causality keys behind and
// ahead have half of the buckets each.
std::int32_t relative_bucket(const model::Attributes& a, std::int64_t query, std::int64_t key) {
    const std::int64_t buckets = a.is_causal ? a.relative_buckets : a.relative_buckets / 2,
                       near = buckets / 2;
    const std::int64_t base = !a.is_causal && key > query ? buckets : 0;
    const std::int64_t distance =
        a.is_causal ? std::max<std::int64_t>(0, query - key) : std::abs(query - key);
    if (distance < near) return static_cast<std::int32_t>(base + distance);
    const double place = std::log(static_cast<double>(distance) / near) /
                         std::log(static_cast<double>(a.relative_distance) / near) * (buckets - near);
    return static_cast<std::int32_t>(
        base + std::min<std::int64_t>(buckets - 1, near + static_cast<std::int64_t>(place)));
}

// Keys and values of a sequence whose parts of `tokens` rows lie apart; together they are [samples,
// parts * tokens, columns].
struct KeyValueRows {
    struct Part {
        float* first;
        std::int64_t stride;
    };
    std::int64_t samples, tokens, columns;
    std::vector<Part> parts;

    void add(const std::vector<KeyValues>& key_values) {
        for (const KeyValues& one : key_values) parts.push_back({one.first.floats(), one.stride});
    }

    template <class Work>
    void for_each_row(float* together, Work work) const {
        for (std::int64_t sample = 0; sample < samples; ++sample)
            for (const Part& part : parts)
                for (std::int64_t t = 0; t < tokens; ++t, together += columns)
                    work(part.first + (sample * tokens + t) * part.stride, together);
    }
    float* gather(float* together) const {
        for_each_row(together, [&](const float* apart, float* row) {
            std::memcpy(row, apart, columns * sizeof(float));
        });
        return together;
    }
    void add_from(const float* together) const {
        for_each_row(const_cast<float*>(together),
                     [&](float* apart, const float* row) { kernels().accumulate(columns, row, apart); });
    }
};

}  // namespace

void Operators::make_attention_tables() {
    for (const std::int32_t i : core::indices(graph_.operators)) {
        const model::Operator& o = graph_.operators[i];
        if (o.kind != OperatorKind::attention) continue;
        const auto index = i;
        if (o.attributes.is_rotary) {
            Rotation& rotation = rotations_[index];
            rotation.dimension =
                static_cast<std::int64_t>(o.attributes.rotary_fraction * o.attributes.head_dimension) / 2 * 2;
            const std::int64_t half = rotation.dimension / 2, tokens = graph_.tensor(o.inputs[0]).shape[0];
            for (std::int64_t t = 0; t < graph_.first_token() + tokens; ++t)
                for (std::int64_t j = 0; j < half; ++j) {
                    const double angle =
                        t * std::pow(o.attributes.rotary_base, -2.0 * j / rotation.dimension);
                    rotation.cosines.push_back(static_cast<float>(std::cos(angle)));
                    rotation.sines.push_back(static_cast<float>(std::sin(angle)));
                }
        }
        if (o.attributes.has_relative_bias) {
            const std::int64_t tokens = graph_.tensor(o.inputs[0]).shape[0];
            for (std::int64_t i = 0; i < tokens; ++i)
                for (std::int64_t j = 0; j < tokens; ++j)
                    buckets_[index].push_back(relative_bucket(o.attributes, i, j));
        }
        if (o.attributes.has_alibi) {
            const std::int64_t heads = model::rank_heads(o, o.attributes.heads, context_);
            for (std::int64_t h = 0; h < heads; ++h)
                slopes_[index].push_back(static_cast<float>(model::alibi_slope(
                    o.attributes.heads, (o.in_parallel_region ? tensor_rank_ * heads : 0) + h)));
        }
    }
}

Operators::KeyColumns Operators::key_columns(model::OperatorId attention) const {
    const model::Attributes& a = op(attention).attributes;
    if (model::gathers_projection(op(attention), context_)) {
        const std::int64_t row = model::rank_matrix(graph_, op(attention).inputs[0], context_).columns;
        return {0, row, row};
    }
    const std::int64_t queries = model::rank_heads(op(attention), a.heads, context_) * a.head_dimension;
    const std::int64_t keys = 2 * model::rank_heads(op(attention), a.kv_heads, context_) * a.head_dimension;
    return {queries, keys, queries + keys};
}

template <class Move>
void Operators::for_each_key_row(const Move& move) const {
    std::int64_t row = 0;
    for (const std::vector<std::int32_t>& places : group_places_)
        for (std::int64_t sample = 0; sample < context_.micro_batch; ++sample)
            for (const std::int32_t token : places) move(row++, sample * graph_.tokens_per_sample + token);
}

namespace {

// Elements `from` ... from + count - 1 of one array to another of the same type: no arithmetic is done.
void copy_elements(const ConstTensorView& source, std::int64_t from, const TensorView& target,
                   std::int64_t to, std::int64_t count) {
    std::memcpy(target.part(to, count).data(), source.part(from, count).data(),
                source.part(from, count).bytes());
}

}  // namespace

template <class Move>
void Operators::for_each_part_of_head(model::OperatorId attention, const Move& move) const {
    const model::Attributes& a = op(attention).attributes;
    const std::int64_t d = a.head_dimension, ranks = context_.tensor_parallel / a.kv_heads, width = d / ranks,
                       row = key_columns(attention).row, queries = row - 2 * width,
                       rows = model::rank_matrix(graph_, op(attention).inputs[0], context_).rows;
    const std::int64_t first = tensor_rank_ / ranks * ranks;
    for (std::int64_t rank = 0; rank < ranks; ++rank)
        for (std::int64_t r = 0; r < rows; ++r)
            for (std::int64_t values = 0; values < 2; ++values)
                move(((first + rank) * rows + r) * row + queries + values * width,
                     (2 * r + values) * d + rank * width, width);
}

void Operators::pack_keys(model::OperatorId attention, ConstTensorView packed, TensorView piece) const {
    const KeyColumns at = key_columns(attention);
    const std::int64_t rows =
        context_.micro_batch * graph_.tensor(op(attention).inputs[0]).shape[0] / context_.context_parallel;
    for (std::int64_t r = 0; r < rows; ++r)
        copy_elements(packed, r * at.row + at.first, piece, r * at.count, at.count);
}

void Operators::order_keys(model::OperatorId attention, ConstTensorView pieces, TensorView keys) const {
    if (model::gathers_projection(op(attention), context_)) {
        for_each_part_of_head(attention, [&](std::int64_t from, std::int64_t to, std::int64_t count) {
            copy_elements(pieces, from, keys, to, count);
        });
        return;
    }
    const std::int64_t width = key_columns(attention).count;
    for_each_key_row([&](std::int64_t from, std::int64_t to) {
        copy_elements(pieces, from * width, keys, to * width, width);
    });
}

void Operators::split_key_gradients(model::OperatorId attention, ConstTensorView dkeys,
                                    TensorView pieces) const {
    if (model::gathers_projection(op(attention), context_)) {
        // Ranks of other heads, and all queries, get nothing from this rank.
        std::memset(pieces.data(), 0, pieces.bytes());
        for_each_part_of_head(attention, [&](std::int64_t to, std::int64_t from, std::int64_t count) {
            copy_elements(dkeys, from, pieces, to, count);
        });
        return;
    }
    const std::int64_t width = key_columns(attention).count;
    for_each_key_row([&](std::int64_t to, std::int64_t from) {
        copy_elements(dkeys, from * width, pieces, to * width, width);
    });
}

void Operators::add_key_gradients(model::OperatorId attention, ConstTensorView piece,
                                  TensorView dpacked) const {
    const KeyColumns at = key_columns(attention);
    const std::int64_t rows = model::rank_matrix(graph_, op(attention).inputs[0], context_).rows;
    for (std::int64_t r = 0; r < rows; ++r)
        kernels().accumulate(at.count, piece.floats() + r * at.count,
                             dpacked.floats() + r * at.row + at.first);
}

void Operators::unpack_keys(model::OperatorId attention, ConstTensorView piece, TensorView packed) const {
    const KeyColumns at = key_columns(attention);
    const std::int64_t rows =
        context_.micro_batch * graph_.tensor(op(attention).inputs[0]).shape[0] / context_.context_parallel;
    for (std::int64_t r = 0; r < rows; ++r)
        copy_elements(piece, r * at.count, packed, r * at.row + at.first, at.count);
}

void Operators::move_heads(model::OperatorId attention, HeadMove move, ConstTensorView from,
                           TensorView to) const {
    const model::AttentionShape shape = model::attention_shape(graph_, op(attention), context_);
    const std::int64_t ranks = context_.context_parallel, heads = shape.heads * shape.head_dimension,
                       keys = shape.kv_heads * shape.head_dimension;
    // Of a row the columns of queries, keys and values, so many of each rank.
    std::vector<std::int64_t> columns = {heads};
    if (!move.is_output) columns.insert(columns.end(), {keys, keys});
    const std::int64_t width = std::accumulate(columns.begin(), columns.end(), std::int64_t{0});
    const auto copy = [&](std::int64_t in_rows, std::int64_t in_shares, std::int64_t count) {
        if (move.to_shares) copy_elements(from, in_rows, to, in_shares, count);
        else copy_elements(from, in_shares, to, in_rows, count);
    };
    std::int64_t share = 0, row = 0;
    for (std::int64_t rank = 0; rank < ranks; ++rank, row = 0)
        for (std::int64_t sample = 0; sample < context_.micro_batch; ++sample)
            for (const std::int32_t token : group_places_[rank]) {
                if (move.has_all_tokens) {
                    copy((sample * graph_.tokens_per_sample + token) * width, share, width);
                    share += width;
                    continue;
                }
                std::int64_t first = row++ * ranks * width;
                for (const std::int64_t count : columns) {
                    copy(first + rank * count, share, count);
                    first += ranks * count;
                    share += count;
                }
            }
}

void Operators::attention(model::OperatorId id, const Operands& x, const MicroBatchPosition& place,
                          const float* dy, const AttentionGradients& gradients) const {
    const model::Operator& o = op(id);
    const model::Attributes& a = o.attributes;
    AttentionShape shape;
    shape.samples = context_.micro_batch;
    shape.tokens = graph_.tensor(o.inputs[0]).shape[0];
    if (a.is_cross_attention) shape.keys = graph_.tensor(o.inputs[1]).shape[0];
    if (!graph_.part.is_whole()) shape.whole_sequence = graph_.sequence_tokens();
    const model::AttentionShape share = model::attention_shape(graph_, o, context_);
    shape.heads = share.heads;
    shape.kv_heads = share.kv_heads;
    shape.head_dimension = a.head_dimension;
    shape.is_causal = a.is_causal;
    shape.window = a.window;
    shape.scale = static_cast<float>(
        a.softmax_scale > 0 ? a.softmax_scale : 1.0 / std::sqrt(static_cast<double>(a.head_dimension)));
    // Of the tensor-parallel rank's heads a share, where they are exchanged.
    const std::int64_t own_heads = model::rank_heads(o, a.heads, context_),
                       first_of_own = model::exchanges_heads(o, context_) ? context_rank_ * shape.heads : 0;
    shape.first_head = (o.in_parallel_region ? tensor_rank_ * own_heads : 0) + first_of_own;
    const std::int64_t key_columns = 2 * shape.kv_heads * shape.head_dimension,
                       columns = shape.heads * shape.head_dimension + key_columns;
    if (!x.earlier.empty()) {
        shape.places = places_.data();
        shape.keys = graph_.first_token() + shape.tokens;
        shape.query_row = columns;
    }
    if (const auto rotation = rotations_.find(id.index); rotation != rotations_.end()) {
        shape.rotary_dimension = rotation->second.dimension;
        shape.cosines = rotation->second.cosines.data();
        shape.sines = rotation->second.sines.data();
    }
    if (const auto slopes = slopes_.find(id.index); slopes != slopes_.end())
        shape.alibi_slopes = slopes->second.data() + first_of_own;
    if (a.has_relative_bias) {
        shape.bias = x.parameters[0].floats();
        shape.bias_buckets = buckets_.at(id.index).data();
    }
    if (x.keys && model::gathers_projection(o, context_)) {  // the head that this rank's queries read
        shape.keys = shape.tokens;
        shape.query_row = model::rank_matrix(graph_, o.inputs[0], context_).columns;
    } else if (x.keys) {  // the group's keys, or one rank's, and this rank's queries
        const std::size_t rank = context_rank_;
        shape.keys = shape.tokens;
        shape.tokens = group_places_[rank].size();
        shape.places = group_places_[rank].data();
        shape.query_row = columns;
        if (x.key_rank) {
            shape.whole_sequence = shape.keys;
            shape.keys = shape.tokens;
            shape.key_places = group_places_[*x.key_rank].data();
            shape.joins = *x.key_rank != context_rank_;
        }
    }
    std::vector<std::uint64_t> keys;
    if (a.probability > 0 && is_training_ && place.is_training) {
        shape.dropout = static_cast<float>(a.probability);
        for (std::int64_t sample = 0; sample < shape.samples; ++sample)
            keys.push_back(random_key(id, place, sample));
        shape.dropout_keys = keys.data();
    }
    AttentionSaved saved;
    const std::int64_t scores =
        shape.samples * shape.heads * shape.tokens * (shape.keys > 0 ? shape.keys : shape.tokens);
    if (context_.attention == model::AttentionImplementation::flash) {
        saved.log_sums = x.saved_context.as<float>();
        if (dy && x.key_rank) saved.output = x.output.floats();
    } else {
        saved.probabilities = x.saved_context.as<float>();
        if (shape.dropout > 0) {
            saved.dropped = saved.probabilities + scores;
            saved.mask = reinterpret_cast<std::uint8_t*>(saved.dropped + scores);
        }
    }
    const float* memory = x.keys                 ? x.keys.floats()
                          : a.is_cross_attention ? x.inputs[1].floats()
                                                 : x.inputs[0].floats();
    float* gradient = x.keys ? x.dkeys.floats() : gradients.keys;
    KeyValueRows joined{shape.samples, shape.tokens, key_columns, {}};
    if (!x.earlier.empty()) {  // the kernel's keys and values in one array, and their gradient
        joined.add(x.earlier);
        joined.parts.push_back({x.inputs[0].floats() + columns - key_columns, columns});
        memory = joined.gather(scratch(8, shape.samples * shape.keys * key_columns));
        if (dy) {
            const std::int64_t count = shape.samples * shape.keys * key_columns;
            gradient = scratch(9, count);
            std::memset(gradient, 0, count * sizeof(float));
        }
    }
    std::optional<NormalisedHeads> norms;
    if (a.query_key_norm != model::QueryKeyNorm::none)
        norms.emplace(shape, a, x, memory, shape.query_row > 0 ? shape.query_row : columns);
    const float *queries = norms ? norms->queries() : x.inputs[0].floats(),
                *keys_and_values = norms ? norms->memory() : memory;
    if (!dy) {
        kernels().attention(shape, queries, keys_and_values, x.output.floats(), saved);
        return;
    }
    if (norms) norms->clear_gradients();
    kernels().attention_backward(shape, queries, keys_and_values, saved, dy,
                                 norms ? norms->query_gradients() : gradients.queries,
                                 norms ? norms->memory_gradients() : gradient, gradients.bias);
    if (norms)
        norms->backward(gradients.queries, gradient,
                        norm_gradients_[{id.index, place.micro_batch, place.segment}]);
    KeyValueRows own{
        shape.samples, shape.tokens, key_columns, {{gradients.keys + columns - key_columns, columns}}};
    if (!x.earlier.empty()) {
        joined.parts.clear();
        joined.add(x.earlier_gradients);
        joined.parts.push_back(own.parts[0]);
        joined.add_from(gradient);
    }
    if (x.later_gradient) own.add_from(x.later_gradient.floats());
}

}  // namespace exec::cpu
