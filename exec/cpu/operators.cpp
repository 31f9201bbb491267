#include "exec/cpu/operators.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/random.h"
#include "exec/context_parallel.h"
#include "exec/cpu/kernels.h"
#include "exec/cpu/mixture.h"
#include "exec/unary.h"
#include "model/alibi.h"
#include "model/rank_share.h"

namespace exec::cpu {

using model::OperatorKind;

namespace {

// T5's bucket of a distance (Raffel et al., arXiv 1910.10683, section 2.1): half of the buckets tell near distances apart, the others grow with the logarithm
// up to `distance`; without causality keys behind and ahead have half of the buckets each.
std::int32_t relative_bucket(const model::Attributes& a, std::int64_t query, std::int64_t key) {
    const std::int64_t buckets = a.is_causal ? a.relative_buckets : a.relative_buckets / 2, near = buckets / 2;
    const std::int64_t base = !a.is_causal && key > query ? buckets : 0;
    const std::int64_t distance = a.is_causal ? std::max<std::int64_t>(0, query - key) : std::abs(query - key);
    if (distance < near) return static_cast<std::int32_t>(base + distance);
    const double place = std::log(static_cast<double>(distance) / static_cast<double>(near)) /
                         std::log(static_cast<double>(a.relative_distance) / static_cast<double>(near)) * static_cast<double>(buckets - near);
    return static_cast<std::int32_t>(base + std::min<std::int64_t>(buckets - 1, near + static_cast<std::int64_t>(place)));
}

ImageShape image_shape(const model::ModelGraph& graph, const model::Operator& op, std::int64_t samples) {
    const std::vector<std::int64_t>&in = graph.tensor(op.inputs[0]).shape, &out = graph.tensor(op.output).shape;
    ImageShape shape;
    shape.samples = samples;
    shape.channels = in[0];
    shape.rows = in[1];
    shape.columns = in[2];
    shape.out_channels = out[0];
    shape.out_rows = out[1];
    shape.out_columns = out[2];
    shape.kernel_y = op.attributes.kernel_y;
    shape.kernel_x = op.attributes.kernel_x;
    shape.stride = op.attributes.stride;
    shape.padding = op.attributes.padding;
    return shape;
}

// Keys and values of a sequence whose pieces of `tokens` rows lie apart; together they are [samples, pieces * tokens, columns].
struct KeyValueRows {
    std::int64_t samples, tokens, columns;
    std::vector<KeyValues> pieces;

    template <class Work>
    void for_each_row(float* together, Work work) const {
        for (std::int64_t sample = 0; sample < samples; ++sample)
            for (const KeyValues& piece : pieces)
                for (std::int64_t t = 0; t < tokens; ++t, together += columns) work(piece.data + (sample * tokens + t) * piece.stride, together);
    }
    float* gather(float* together) const {
        for_each_row(together, [&](const float* apart, float* row) { std::memcpy(row, apart, static_cast<std::size_t>(columns) * sizeof(float)); });
        return together;
    }
    void add_from(const float* together) const {
        for_each_row(const_cast<float*>(together), [&](float* apart, const float* row) { kernels().accumulate(columns, row, apart); });
    }
};

const std::int64_t* ids(const float* pointer) { return reinterpret_cast<const std::int64_t*>(pointer); }

}  // namespace

Operators::Operators(const model::ModelGraph& graph, const model::CostContext& context, int tensor_rank, std::uint64_t seed, bool is_training, int context_rank)
    : graph_(graph), context_(context), tensor_rank_(tensor_rank), seed_(seed), is_training_(is_training), context_rank_(context_rank) {
    for (int rank = 0; context.context_parallel > 1 && rank < context.context_parallel; ++rank)
        group_places_.push_back(places_of_tokens(graph.tokens_per_sample, context.context_parallel, rank));
    for (std::int64_t t = 0; t < graph.tokens_per_sample && graph.segments > 1; ++t) places_.push_back(static_cast<std::int32_t>(graph.first_token() + t));
    for (std::size_t i = 0; i < graph.operators.size(); ++i) {
        const model::Operator& o = graph.operators[i];
        if (o.kind != OperatorKind::attention) continue;
        const auto index = static_cast<std::int32_t>(i);
        if (o.attributes.is_rotary) {
            Rotation& rotation = rotations_[index];
            rotation.dimension = static_cast<std::int64_t>(o.attributes.rotary_fraction * static_cast<double>(o.attributes.head_dimension)) / 2 * 2;
            const std::int64_t half = rotation.dimension / 2, tokens = graph.tensor(o.inputs[0]).shape[0];
            for (std::int64_t t = 0; t < graph.first_token() + tokens; ++t)
                for (std::int64_t j = 0; j < half; ++j) {
                    const double angle =
                        static_cast<double>(t) * std::pow(o.attributes.rotary_base, -2.0 * static_cast<double>(j) / static_cast<double>(rotation.dimension));
                    rotation.cosines.push_back(static_cast<float>(std::cos(angle)));
                    rotation.sines.push_back(static_cast<float>(std::sin(angle)));
                }
        }
        if (o.attributes.has_relative_bias) {
            const std::int64_t tokens = graph.tensor(o.inputs[0]).shape[0];
            for (std::int64_t i = 0; i < tokens; ++i)
                for (std::int64_t j = 0; j < tokens; ++j) buckets_[index].push_back(relative_bucket(o.attributes, i, j));
        }
        if (o.attributes.has_alibi) {
            const std::int64_t heads = model::rank_heads(o, o.attributes.heads, context);
            for (std::int64_t h = 0; h < heads; ++h)
                slopes_[index].push_back(static_cast<float>(model::alibi_slope(o.attributes.heads, (o.in_parallel_region ? tensor_rank * heads : 0) + h)));
        }
    }
}

std::string Operators::obstacle(const model::ModelGraph&, const model::Operator& op) {
    if (op.attributes.is_frozen) return "frozen operators";
    switch (op.kind) {
        case OperatorKind::batch_norm: return op.attributes.has_fixed_statistics ? "batch norm with fixed statistics" : std::string();
        case OperatorKind::prepend_token:
        case OperatorKind::merge_patches:
        case OperatorKind::matrix_product:
        case OperatorKind::elementwise:
        case OperatorKind::softmax:
        case OperatorKind::normalization:
        case OperatorKind::reduce:
        case OperatorKind::concat:
        case OperatorKind::reshape:
        case OperatorKind::permute:
        case OperatorKind::slice:
        case OperatorKind::gather:
        case OperatorKind::pooling:
        case OperatorKind::convolution:
        case OperatorKind::unknown: return fmt::format("operators of kind {}", model::name_of(op.kind));
        case OperatorKind::attention:
            if (op.attributes.has_relative_bias && op.attributes.relative_buckets == 0) return "attention with a bias for every offset in a window";
            if (op.attributes.has_relative_positions) return "attention to relative positions and a memory";
            if (op.attributes.local_window > 0) return "attention inside local windows";
            return {};
        default: return {};
    }
}

Operators::Sizes Operators::sizes_of(model::TensorId tensor) const {
    const model::RankMatrix matrix = model::rank_matrix(graph_, tensor, context_);
    Sizes sizes{matrix.rows, matrix.columns, 0};
    const std::int64_t whole = rows_per_sample(tensor) * context_.micro_batch / context_.context_parallel;
    if (sizes.rows < whole) sizes.first_row = tensor_rank_ * sizes.rows;
    return sizes;
}

std::int64_t Operators::rows_per_sample(model::TensorId tensor) const {
    const model::Tensor& t = graph_.tensor(tensor);
    std::int64_t rows = 1;
    for (std::size_t i = 0; i + 1 < t.shape.size(); ++i) rows *= t.shape[i];
    return rows;
}

std::int64_t Operators::elements(model::TensorId tensor) const {
    const Sizes sizes = sizes_of(tensor);
    return sizes.rows * sizes.columns;
}

std::int64_t Operators::parameter_rows(model::ParameterId parameter, int dimension) const {
    return model::rank_extent(graph_.parameter(parameter), dimension, context_);
}

Operators::Classes Operators::classes_of(model::TensorId logits) const {
    const Sizes sizes = sizes_of(logits);
    const std::int64_t whole = graph_.tensor(logits).shape.back();
    const std::int64_t first = sizes.columns < whole ? tensor_rank_ * sizes.columns : 0;
    return {sizes.rows, sizes.columns, first, std::clamp<std::int64_t>(whole - first, 0, sizes.columns)};
}

Operators::RowPlace Operators::place_of(std::int64_t row, std::int64_t tokens) const {
    if (group_places_.empty()) return {row / tokens, row % tokens};
    const std::vector<std::int32_t>& own = group_places_[static_cast<std::size_t>(context_rank_)];
    const auto count = static_cast<std::int64_t>(own.size());
    return {row / count, own[static_cast<std::size_t>(row % count)]};
}

Operators::KeyColumns Operators::key_columns(model::OperatorId attention) const {
    const model::Attributes& a = op(attention).attributes;
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

// As activations are stored: the three below move elements, they do no arithmetic.
std::size_t Operators::stored_bytes(std::int64_t elements) const {
    return static_cast<std::size_t>(elements) * static_cast<std::size_t>(core::size_of(context_.compute).value);
}

void Operators::pack_keys(model::OperatorId attention, const float* packed, float* piece) const {
    const KeyColumns at = key_columns(attention);
    const std::int64_t rows = context_.micro_batch * static_cast<std::int64_t>(group_places_[0].size());
    const core::DataType type = context_.compute;
    for (std::int64_t r = 0; r < rows; ++r)
        std::memcpy(element_at(type, piece, r * at.count), element_at(type, const_cast<float*>(packed), r * at.row + at.first), stored_bytes(at.count));
}

void Operators::order_keys(model::OperatorId attention, const float* pieces, float* keys) const {
    const std::int64_t width = key_columns(attention).count;
    const core::DataType type = context_.compute;
    for_each_key_row([&](std::int64_t from, std::int64_t to) {
        std::memcpy(element_at(type, keys, to * width), element_at(type, const_cast<float*>(pieces), from * width), stored_bytes(width));
    });
}

void Operators::split_key_gradients(model::OperatorId attention, const float* dkeys, float* pieces) const {
    const std::int64_t width = key_columns(attention).count;
    const core::DataType type = context_.compute;
    for_each_key_row([&](std::int64_t to, std::int64_t from) {
        std::memcpy(element_at(type, pieces, to * width), element_at(type, const_cast<float*>(dkeys), from * width), stored_bytes(width));
    });
}

void Operators::add_key_gradients(model::OperatorId attention, const float* piece, float* dpacked) const {
    const KeyColumns at = key_columns(attention);
    const std::int64_t rows = context_.micro_batch * static_cast<std::int64_t>(group_places_[0].size());
    for (std::int64_t r = 0; r < rows; ++r) kernels().accumulate(at.count, piece + r * at.count, dpacked + r * at.row + at.first);
}

std::vector<std::int64_t> Operators::expert_rows(model::OperatorId id, const Operands& x) const {
    const MixtureTask task = mixture_of(op(id));
    return route(task.attributes, task.shape.tokens, x.inputs[1]).rows;
}

MixtureTask Operators::mixture_of(const model::Operator& o) const {
    return {o.attributes, model::mixture_shape(graph_, o, context_), !o.in_parallel_region || tensor_rank_ == 0};
}

std::uint64_t Operators::random_key(model::OperatorId id, const MicroBatchPlace& place, std::int64_t sample) const {
    return mask_key(seed_, place.step, id.index, place.samples[static_cast<std::size_t>(sample)]);
}

void Operators::embedding(const model::Operator& o, const Operands& x) const {
    const Sizes y = sizes_of(o.output);
    const std::int64_t table = parameter_rows(o.parameters[0], 0), whole = graph_.parameter(o.parameters[0]).shape[0];
    const std::int64_t first = table < whole ? tensor_rank_ * table : 0;
    for (std::int64_t r = 0; r < y.rows; ++r) {
        const std::int64_t id = ids(x.inputs[0])[y.first_row + r] - first;
        float* row = x.output + r * y.columns;
        if (id >= 0 && id < table) std::memcpy(row, x.parameters[0] + id * y.columns, static_cast<std::size_t>(y.columns) * sizeof(float));
        else std::memset(row, 0, static_cast<std::size_t>(y.columns) * sizeof(float));
    }
}

void Operators::embedding_weight(const model::Operator& o, const Operands& x, const float* dy, float* dtable) const {
    const Sizes y = sizes_of(o.output);
    const std::int64_t table = parameter_rows(o.parameters[0], 0), whole = graph_.parameter(o.parameters[0]).shape[0];
    const std::int64_t first = table < whole ? tensor_rank_ * table : 0;
    for (std::int64_t r = 0; r < y.rows; ++r) {
        const std::int64_t id = ids(x.inputs[0])[y.first_row + r] - first;
        if (id >= 0 && id < table) kernels().accumulate(y.columns, dy + r * y.columns, dtable + id * y.columns);
    }
}

void Operators::dropout(model::OperatorId id, const Operands& x, const MicroBatchPlace& place) const {
    const model::TensorId tensor = op(id).output;
    const Sizes y = sizes_of(tensor);
    const std::int64_t per_sample = rows_per_sample(tensor), width = graph_.tensor(tensor).shape.back();
    const std::int64_t first_column = y.columns < width ? tensor_rank_ * y.columns : 0;
    if (!is_training_) {
        std::memcpy(x.output, x.inputs[0], static_cast<std::size_t>(y.rows * y.columns) * sizeof(float));
        return;
    }
    auto* mask = static_cast<std::uint8_t*>(x.extra);
    for (std::int64_t r = 0; r < y.rows; ++r) {
        const RowPlace row = place_of(y.first_row + r, per_sample);
        const std::int64_t at = r * y.columns;
        kernels().dropout(random_key(id, place, row.sample), (graph_.first_token() + row.token) * width + first_column, y.columns,
                          static_cast<float>(op(id).attributes.probability), x.inputs[0] + at, x.output + at, mask + at);
    }
}

void Operators::attention(model::OperatorId id, const Operands& x, const MicroBatchPlace& place, const float* dy, const AttentionGradients& gradients) const {
    const model::Operator& o = op(id);
    const model::Attributes& a = o.attributes;
    AttentionShape shape;
    shape.samples = context_.micro_batch;
    shape.tokens = graph_.tensor(o.inputs[0]).shape[0];
    if (a.is_cross_attention) shape.keys = graph_.tensor(o.inputs[1]).shape[0];
    if (graph_.segments > 1) shape.whole_sequence = graph_.sequence_tokens();
    shape.heads = model::rank_heads(o, a.heads, context_);
    shape.kv_heads = model::rank_heads(o, a.kv_heads, context_);
    shape.head_dimension = a.head_dimension;
    shape.is_causal = a.is_causal;
    shape.window = a.window;
    shape.scale = static_cast<float>(a.softmax_scale > 0 ? a.softmax_scale : 1.0 / std::sqrt(static_cast<double>(a.head_dimension)));
    shape.first_head = o.in_parallel_region ? tensor_rank_ * shape.heads : 0;
    const std::int64_t key_columns = 2 * shape.kv_heads * shape.head_dimension, columns = shape.heads * shape.head_dimension + key_columns;
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
    if (const auto slopes = slopes_.find(id.index); slopes != slopes_.end()) shape.alibi_slopes = slopes->second.data();
    if (a.has_relative_bias) {
        shape.bias = x.parameters[0];
        shape.bias_buckets = buckets_.at(id.index).data();
    }
    if (x.keys) {  // the group's keys, and this rank's queries
        const auto rank = static_cast<std::size_t>(context_rank_);
        shape.keys = shape.tokens;
        shape.tokens = static_cast<std::int64_t>(group_places_[rank].size());
        shape.places = group_places_[rank].data();
        shape.query_row = columns;
    }
    std::vector<std::uint64_t> keys;
    if (a.probability > 0 && is_training_) {
        shape.dropout = static_cast<float>(a.probability);
        for (std::int64_t sample = 0; sample < shape.samples; ++sample) keys.push_back(random_key(id, place, sample));
        shape.dropout_keys = keys.data();
    }
    AttentionSaved saved;
    const std::int64_t scores = shape.samples * shape.heads * shape.tokens * (shape.keys > 0 ? shape.keys : shape.tokens);
    if (context_.attention == model::AttentionImplementation::flash) {
        saved.log_sums = static_cast<float*>(x.extra);
    } else {
        saved.probabilities = static_cast<float*>(x.extra);
        if (shape.dropout > 0) {
            saved.dropped = saved.probabilities + scores;
            saved.mask = reinterpret_cast<std::uint8_t*>(saved.dropped + scores);
        }
    }
    const float* memory = x.keys ? x.keys : a.is_cross_attention ? x.inputs[1] : x.inputs[0];
    float* gradient = x.keys ? x.dkeys : gradients.keys;
    KeyValueRows joined{shape.samples, shape.tokens, key_columns, {}};
    if (!x.earlier.empty()) {  // keys and values of all pieces in one array for the kernel, and their gradient
        joined.pieces = x.earlier;
        joined.pieces.push_back({x.inputs[0] + columns - key_columns, columns});
        memory = joined.gather(scratch(8, shape.samples * shape.keys * key_columns));
        if (dy) {
            const std::int64_t count = shape.samples * shape.keys * key_columns;
            gradient = scratch(9, count);
            std::memset(gradient, 0, static_cast<std::size_t>(count) * sizeof(float));
        }
    }
    if (!dy) {
        kernels().attention(shape, x.inputs[0], memory, x.output, saved);
        return;
    }
    kernels().attention_backward(shape, x.inputs[0], memory, saved, dy, gradients.queries, gradient, gradients.bias);
    KeyValueRows own{shape.samples, shape.tokens, key_columns, {{gradients.keys + columns - key_columns, columns}}};
    if (!x.earlier.empty()) {
        joined.pieces = x.earlier_gradients;
        joined.pieces.push_back(own.pieces[0]);
        joined.add_from(gradient);
    }
    if (x.later_gradient) own.add_from(x.later_gradient);
}

// Per row: logarithm of the sum of exponentials over all classes, and the label's logit.
void Operators::log_sums(const model::Operator& o, const Operands& x, std::vector<float>& sums, std::vector<float>& labels) const {
    const Classes classes = classes_of(o.inputs[0]);
    const int blocks = classes.columns < graph_.tensor(o.inputs[0]).shape.back() ? context_.tensor_parallel : 1;
    sums.resize(static_cast<std::size_t>(classes.rows));
    labels.assign(static_cast<std::size_t>(classes.rows), 0);
    for (std::int64_t r = 0; r < classes.rows; ++r) {
        const auto part = [&](int block) { return x.inputs[1] + (block * classes.rows + r) * 3; };
        float maximum = part(0)[0], sum = 0;
        for (int block = 1; block < blocks; ++block) maximum = std::max(maximum, part(block)[0]);
        for (int block = 0; block < blocks; ++block) {
            sum += part(block)[1] * std::exp(part(block)[0] - maximum);
            labels[static_cast<std::size_t>(r)] += part(block)[2];
        }
        sums[static_cast<std::size_t>(r)] = maximum + std::log(sum);
    }
}

void Operators::cross_entropy(const model::Operator& o, const Operands& x) const {
    const Classes classes = classes_of(o.inputs[0]);
    std::vector<float> sums, labels;
    log_sums(o, x, sums, labels);
    double total = 0;
    for (std::size_t r = 0; r < sums.size(); ++r) total += static_cast<double>(sums[r]) - static_cast<double>(labels[r]);
    std::fill_n(x.output, elements(o.output), static_cast<float>(total / static_cast<double>(classes.rows)));
    if (!context_.fused_cross_entropy) kernels().softmax(classes.rows, classes.columns, classes.valid, x.inputs[0], sums.data(), static_cast<float*>(x.extra));
}

void Operators::forward(model::OperatorId id, const Operands& x, const MicroBatchPlace& place) const {
    const model::Operator& o = op(id);
    const Kernels& k = kernels();
    const Sizes y = sizes_of(o.output);
    const std::int64_t count = y.rows * y.columns;
    const auto epsilon = static_cast<float>(o.attributes.epsilon);
    auto* extra = static_cast<float*>(x.extra);
    switch (o.kind) {
        case OperatorKind::input:
        case OperatorKind::flatten:
        case OperatorKind::parallel_enter:
        case OperatorKind::parallel_exit: break;  // views, or performed by a collective
        case OperatorKind::embedding: embedding(o, x); break;
        case OperatorKind::position_embedding: {
            const std::int64_t tokens = graph_.tensor(o.output).shape[0];
            for (std::int64_t r = 0; r < y.rows; ++r)
                k.add(y.columns, x.inputs[0] + r * y.columns,
                      x.parameters[0] + (place_of(y.first_row + r, tokens).token + o.attributes.position_offset) * y.columns, x.output + r * y.columns);
            break;
        }
        case OperatorKind::linear: {
            const std::int64_t inputs = parameter_rows(o.parameters[0], 1);
            const float* in = x.inputs[0];
            if (o.attributes.input_scale != 1.0) {
                k.scale(y.rows * inputs, static_cast<float>(o.attributes.input_scale), in, extra);
                in = extra;
            }
            k.product(false, true, y.rows, y.columns, inputs, 1, in, inputs, x.parameters[0], inputs, x.output, y.columns, false);
            // Partial sums: the bias counts once.
            const bool is_partial = graph_.tensor(o.output).split == model::TensorSplit::partial && context_.tensor_parallel > 1;
            if (o.attributes.has_bias && (!is_partial || tensor_rank_ == 0)) k.add_row(y.rows, y.columns, x.parameters[1], x.output);
            break;
        }
        case OperatorKind::layer_norm:
            k.layer_norm(y.rows, y.columns, epsilon, x.inputs[0], x.parameters[0], o.attributes.has_bias ? x.parameters[1] : nullptr, x.output, extra);
            break;
        case OperatorKind::rms_norm: k.rms_norm(y.rows, y.columns, epsilon, x.inputs[0], x.parameters[0], x.output, extra); break;
        case OperatorKind::batch_norm:
            k.batch_norm(image_shape(graph_, o, context_.micro_batch), epsilon, x.inputs[0], x.parameters[0], x.parameters[1], x.output, extra);
            break;
        case OperatorKind::attention: attention(id, x, place, nullptr, {}); break;
        case OperatorKind::gelu:
        case OperatorKind::relu:
        case OperatorKind::silu:
        case OperatorKind::tanh: k.unary(unary_of<Unary>(o), count, x.inputs[0], x.output); break;
        case OperatorKind::gated_silu:
        case OperatorKind::gated_gelu: k.gated(unary_of<Unary>(o), y.rows, y.columns, x.inputs[0], x.output); break;
        case OperatorKind::dropout: dropout(id, x, place); break;
        case OperatorKind::add: k.add(count, x.inputs[0], x.inputs[1], x.output); break;
        case OperatorKind::conv2d:
            k.convolution(image_shape(graph_, o, context_.micro_batch), x.inputs[0], x.parameters[0], o.attributes.has_bias ? x.parameters[1] : nullptr,
                          x.output);
            break;
        case OperatorKind::max_pool:
            k.max_pool(image_shape(graph_, o, context_.micro_batch), x.inputs[0], x.output, static_cast<std::int64_t*>(x.extra));
            break;
        case OperatorKind::average_pool: k.average_pool(image_shape(graph_, o, context_.micro_batch), x.inputs[0], x.output); break;
        case OperatorKind::transpose: {
            const std::int64_t leading = graph_.tensor(o.inputs[0]).shape[0], rest = count / context_.micro_batch / leading;
            for (std::int64_t b = 0; b < context_.micro_batch; ++b)
                for (std::int64_t i = 0; i < leading; ++i)
                    for (std::int64_t j = 0; j < rest; ++j) x.output[(b * rest + j) * leading + i] = x.inputs[0][(b * leading + i) * rest + j];
            break;
        }
        case OperatorKind::average_tokens: {
            const std::int64_t tokens = graph_.tensor(o.inputs[0]).shape[0];
            std::fill_n(x.output, count, 0.0f);
            for (std::int64_t b = 0; b < y.rows; ++b) {
                k.sum_rows(tokens, y.columns, x.inputs[0] + b * tokens * y.columns, x.output + b * y.columns);
                k.scale(y.columns, 1.0f / static_cast<float>(tokens), x.output + b * y.columns, x.output + b * y.columns);
            }
            break;
        }
        case OperatorKind::select_first_token: {
            const std::int64_t tokens = graph_.tensor(o.inputs[0]).shape[0];
            for (std::int64_t b = 0; b < y.rows; ++b)
                std::memcpy(x.output + b * y.columns, x.inputs[0] + b * tokens * y.columns, static_cast<std::size_t>(y.columns) * sizeof(float));
            break;
        }
        case OperatorKind::select_positions: {
            const std::int64_t tokens = graph_.tensor(o.inputs[0]).shape[0], selected = graph_.tensor(o.output).shape[0];
            for (std::int64_t r = 0; r < y.rows; ++r)
                std::memcpy(x.output + r * y.columns, x.inputs[0] + (r / selected * tokens + ids(x.inputs[1])[r]) * y.columns,
                            static_cast<std::size_t>(y.columns) * sizeof(float));
            break;
        }
        case OperatorKind::loss_statistics: {
            const Classes c = classes_of(o.inputs[0]);
            k.loss_statistics(c.rows, c.columns, c.valid, c.first, x.inputs[0], ids(x.inputs[1]), x.output);
            break;
        }
        case OperatorKind::cross_entropy: cross_entropy(o, x); break;
        case OperatorKind::router: router(mixture_of(o), x); break;
        case OperatorKind::dispatch: dispatch(mixture_of(o), x); break;
        case OperatorKind::experts: experts(mixture_of(o), x); break;
        case OperatorKind::combine: combine(mixture_of(o), x); break;
        case OperatorKind::prepend_token:
        case OperatorKind::merge_patches:
        case OperatorKind::matrix_product:
        case OperatorKind::elementwise:
        case OperatorKind::softmax:
        case OperatorKind::normalization:
        case OperatorKind::reduce:
        case OperatorKind::concat:
        case OperatorKind::reshape:
        case OperatorKind::permute:
        case OperatorKind::slice:
        case OperatorKind::gather:
        case OperatorKind::pooling:
        case OperatorKind::convolution:
        case OperatorKind::unknown: core::require(false, "operators without a kernel are refused before anything runs"); break;
    }
}

void Operators::backward_input(model::OperatorId id, const Operands& x, const float* dy, const std::vector<float*>& dx, const MicroBatchPlace& place) const {
    const model::Operator& o = op(id);
    const Kernels& k = kernels();
    const Sizes y = sizes_of(o.output);
    const std::int64_t count = y.rows * y.columns;
    const auto* extra = static_cast<const float*>(x.extra);
    if (o.kind == OperatorKind::add) {
        for (float* gradient : dx)
            if (gradient) k.accumulate(count, dy, gradient);
        return;
    }
    if (o.kind == OperatorKind::combine) return combine_backward(mixture_of(o), x, dy, dx[0], dx[1]);
    if (dx.empty() || !dx[0]) return;
    switch (o.kind) {
        case OperatorKind::router: router_backward(mixture_of(o), x, dy, dx[0], nullptr); break;
        case OperatorKind::dispatch: dispatch_backward(mixture_of(o), x, dy, dx[0]); break;
        case OperatorKind::experts: experts_backward(mixture_of(o), x, dy, dx[0]); break;
        case OperatorKind::position_embedding: k.accumulate(count, dy, dx[0]); break;
        case OperatorKind::linear: {
            const std::int64_t inputs = parameter_rows(o.parameters[0], 1);
            k.product(false, false, y.rows, inputs, y.columns, static_cast<float>(o.attributes.input_scale), dy, y.columns, x.parameters[0], inputs, dx[0],
                      inputs, true);
            break;
        }
        case OperatorKind::layer_norm: k.layer_norm_backward(y.rows, y.columns, x.inputs[0], extra, x.parameters[0], dy, dx[0]); break;
        case OperatorKind::rms_norm: k.rms_norm_backward(y.rows, y.columns, x.inputs[0], extra, x.parameters[0], dy, dx[0]); break;
        case OperatorKind::batch_norm:
            k.batch_norm_backward(image_shape(graph_, o, context_.micro_batch), x.inputs[0], extra, x.parameters[0], dy, dx[0]);
            break;
        case OperatorKind::attention: attention(id, x, place, dy, {dx[0], o.attributes.is_cross_attention ? dx[1] : dx[0], nullptr}); break;
        case OperatorKind::gelu:
        case OperatorKind::silu: k.unary_backward(unary_of<Unary>(o), count, x.inputs[0], dy, dx[0]); break;
        case OperatorKind::relu:
        case OperatorKind::tanh: k.unary_backward(unary_of<Unary>(o), count, x.output, dy, dx[0]); break;
        case OperatorKind::gated_silu:
        case OperatorKind::gated_gelu: k.gated_backward(unary_of<Unary>(o), y.rows, y.columns, x.inputs[0], dy, dx[0]); break;
        case OperatorKind::dropout:
            k.dropout_backward(count, static_cast<float>(o.attributes.probability), static_cast<const std::uint8_t*>(x.extra), dy, dx[0]);
            break;
        case OperatorKind::conv2d: k.convolution_backward(image_shape(graph_, o, context_.micro_batch), x.parameters[0], dy, dx[0]); break;
        case OperatorKind::max_pool:
            k.max_pool_backward(image_shape(graph_, o, context_.micro_batch), static_cast<const std::int64_t*>(x.extra), dy, dx[0]);
            break;
        case OperatorKind::average_pool: k.average_pool_backward(image_shape(graph_, o, context_.micro_batch), dy, dx[0]); break;
        case OperatorKind::transpose: {
            const std::int64_t leading = graph_.tensor(o.inputs[0]).shape[0], rest = count / context_.micro_batch / leading;
            for (std::int64_t b = 0; b < context_.micro_batch; ++b)
                for (std::int64_t i = 0; i < leading; ++i)
                    for (std::int64_t j = 0; j < rest; ++j) dx[0][(b * leading + i) * rest + j] += dy[(b * rest + j) * leading + i];
            break;
        }
        case OperatorKind::average_tokens: {
            const std::int64_t tokens = graph_.tensor(o.inputs[0]).shape[0];
            for (std::int64_t r = 0; r < y.rows * tokens; ++r)
                for (std::int64_t c = 0; c < y.columns; ++c) dx[0][r * y.columns + c] += dy[r / tokens * y.columns + c] / static_cast<float>(tokens);
            break;
        }
        case OperatorKind::select_first_token: {
            const std::int64_t tokens = graph_.tensor(o.inputs[0]).shape[0];
            for (std::int64_t b = 0; b < y.rows; ++b) k.accumulate(y.columns, dy + b * y.columns, dx[0] + b * tokens * y.columns);
            break;
        }
        case OperatorKind::select_positions: {
            const std::int64_t tokens = graph_.tensor(o.inputs[0]).shape[0], selected = graph_.tensor(o.output).shape[0];
            for (std::int64_t r = 0; r < y.rows; ++r)
                k.accumulate(y.columns, dy + r * y.columns, dx[0] + (r / selected * tokens + ids(x.inputs[1])[r]) * y.columns);
            break;
        }
        case OperatorKind::cross_entropy: {
            const Classes c = classes_of(o.inputs[0]);
            const float factor = *dy / static_cast<float>(c.rows);
            if (!context_.fused_cross_entropy) {
                k.cross_entropy_backward(c.rows, c.columns, c.first, c.valid, factor, extra, ids(x.inputs[2]), dx[0]);
                break;
            }
            std::vector<float> sums, labels;
            log_sums(o, x, sums, labels);
            float* p = scratch(7, c.columns);
            for (std::int64_t r = 0; r < c.rows; ++r) {
                k.softmax(1, c.columns, c.valid, x.inputs[0] + r * c.columns, &sums[static_cast<std::size_t>(r)], p);
                k.cross_entropy_backward(1, c.columns, c.first, c.valid, factor, p, ids(x.inputs[2]) + r, dx[0] + r * c.columns);
            }
            break;
        }
        default: break;
    }
}

void Operators::backward_weight(model::OperatorId id, const Operands& x, const float* dy, const std::vector<float*>& dparameters) const {
    const model::Operator& o = op(id);
    const Kernels& k = kernels();
    const Sizes y = sizes_of(o.output);
    const auto* extra = static_cast<const float*>(x.extra);
    switch (o.kind) {
        case OperatorKind::router: router_backward(mixture_of(o), x, dy, nullptr, dparameters[0]); break;
        case OperatorKind::experts: experts_weights(mixture_of(o), x, dy, dparameters[0], dparameters[1]); break;
        case OperatorKind::embedding: embedding_weight(o, x, dy, dparameters[0]); break;
        case OperatorKind::position_embedding: {
            const std::int64_t tokens = graph_.tensor(o.output).shape[0];
            for (std::int64_t r = 0; r < y.rows; ++r)
                k.accumulate(y.columns, dy + r * y.columns, dparameters[0] + (place_of(y.first_row + r, tokens).token + o.attributes.position_offset) * y.columns);
            break;
        }
        case OperatorKind::attention: {
            // The scores' gradient once more: backward_input keeps nothing.
            std::vector<float> unwanted(static_cast<std::size_t>(elements(o.inputs[0])));
            attention(id, x, *x.place, dy, {unwanted.data(), unwanted.data(), dparameters[0]});
            break;
        }
        case OperatorKind::linear: {
            const std::int64_t inputs = parameter_rows(o.parameters[0], 1);
            const float* in = o.attributes.input_scale != 1.0 ? extra : x.inputs[0];
            k.product(true, false, y.columns, inputs, y.rows, 1, dy, y.columns, in, inputs, dparameters[0], inputs, true);
            if (o.attributes.has_bias) k.sum_rows(y.rows, y.columns, dy, dparameters[1]);
            break;
        }
        case OperatorKind::layer_norm:
            k.layer_norm_weights(y.rows, y.columns, x.inputs[0], extra, dy, dparameters[0], o.attributes.has_bias ? dparameters[1] : nullptr);
            break;
        case OperatorKind::rms_norm: k.rms_norm_weights(y.rows, y.columns, x.inputs[0], extra, dy, dparameters[0]); break;
        case OperatorKind::batch_norm:
            k.batch_norm_weights(image_shape(graph_, o, context_.micro_batch), x.inputs[0], extra, dy, dparameters[0], dparameters[1]);
            break;
        case OperatorKind::conv2d:
            k.convolution_weights(image_shape(graph_, o, context_.micro_batch), x.inputs[0], dy, dparameters[0],
                                  o.attributes.has_bias ? dparameters[1] : nullptr);
            break;
        default: break;
    }
}

}  // namespace exec::cpu
