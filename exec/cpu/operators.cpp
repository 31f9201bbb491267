#include "exec/cpu/operators.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>

#include <fmt/core.h>

#include "core/errors.h"
#include "core/random.h"
#include "exec/context_parallel.h"
#include "exec/cpu/kernels.h"
#include "exec/cpu/mixture.h"
#include "exec/unary.h"
#include "model/operators/rank_share.h"

namespace exec::cpu {

using model::OperatorKind;

namespace {

ImageShape image_shape(const model::ModelGraph& graph, const model::Operator& op, std::int64_t samples) {
    const std::vector<std::int64_t>&in = graph.tensor(op.inputs[0]).shape,
          &out = graph.tensor(op.output).shape;
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

}  // namespace

Operators::Operators(const model::ModelGraph& graph, const model::CostContext& context, int tensor_rank,
                     std::uint64_t seed, bool is_training, int context_rank)
    : graph_(graph),
      context_(context),
      tensor_rank_(tensor_rank),
      seed_(seed),
      is_training_(is_training),
      context_rank_(context_rank) {
    for (int rank = 0; context.context_parallel > 1 && rank < context.context_parallel; ++rank)
        group_places_.push_back(places_of_tokens(graph.tokens_per_sample, context.context_parallel, rank));
    for (std::int64_t t = 0; t < graph.tokens_per_sample && !graph.part.is_whole(); ++t)
        places_.push_back(static_cast<std::int32_t>(graph.first_token() + t));
    make_attention_tables();
}

namespace {

// Callers refuse an operator without kernels before anything runs, and ask for gradients only of what has
// them.
[[noreturn]] void throw_no_kernel(std::string_view pass, OperatorKind kind) {
    throw core::InternalError(
        fmt::format("the CPU backend has no {} kernel of an operator {}", pass, model::name_of(kind)));
}

}  // namespace

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

Operators::TokenPosition Operators::place_of(std::int64_t row, std::int64_t tokens) const {
    if (group_places_.empty()) return {row / tokens, row % tokens};
    const std::vector<std::int32_t>& own = group_places_[context_rank_];
    const auto count = std::ssize(own);
    return {row / count, own[row % count]};
}

std::vector<std::int64_t> Operators::expert_rows(model::OperatorId id, const Operands& x) const {
    const MixtureTask task = mixture_of(op(id));
    return route(task.attributes, task.shape.tokens, x.inputs[1].floats()).rows;
}

void Operators::choices(model::OperatorId id, const Operands& x, TensorView all) const {
    const MixtureTask task = mixture_of(op(id));
    const Routing routing = route(task.attributes, task.shape.tokens, x.output.floats());
    std::copy(routing.chosen.begin(), routing.chosen.end(), all.floats());  // exact: far fewer than 2^24
}

MixtureTask Operators::mixture_of(const model::Operator& o) const {
    return {o.attributes, model::mixture_shape(graph_, o, context_),
            !o.in_parallel_region || tensor_rank_ == 0, model::parts_of_tokens(o, context_),
            model::parts_of_loss(o, context_)};
}

std::uint64_t Operators::random_key(model::OperatorId id, const MicroBatchPosition& place,
                                    std::int64_t sample) const {
    return mask_key(seed_, place.step, id.index, place.samples[sample]);
}

void Operators::embedding(const model::Operator& o, const Operands& x) const {
    const Sizes y = sizes_of(o.output);
    const std::int64_t table = parameter_rows(o.parameters[0], 0),
                       whole = graph_.parameter(o.parameters[0]).shape[0];
    const std::int64_t first = table < whole ? tensor_rank_ * table : 0;
    for (std::int64_t r = 0; r < y.rows; ++r) {
        const std::int64_t id = x.inputs[0].integers()[y.first_row + r] - first;
        float* row = x.output.floats() + r * y.columns;
        if (id >= 0 && id < table)
            std::memcpy(row, x.parameters[0].floats() + id * y.columns, y.columns * sizeof(float));
        else std::memset(row, 0, y.columns * sizeof(float));
    }
}

void Operators::embedding_weight(const model::Operator& o, const Operands& x, const float* dy,
                                 float* dtable) const {
    const Sizes y = sizes_of(o.output);
    const std::int64_t table = parameter_rows(o.parameters[0], 0),
                       whole = graph_.parameter(o.parameters[0]).shape[0];
    const std::int64_t first = table < whole ? tensor_rank_ * table : 0;
    for (std::int64_t r = 0; r < y.rows; ++r) {
        const std::int64_t id = x.inputs[0].integers()[y.first_row + r] - first;
        if (id >= 0 && id < table)
            kernels().accumulate(y.columns, dy + r * y.columns, dtable + id * y.columns);
    }
}

void Operators::dropout(model::OperatorId id, const Operands& x, const MicroBatchPosition& place) const {
    const model::TensorId tensor = op(id).output;
    const Sizes y = sizes_of(tensor);
    const std::int64_t per_sample = rows_per_sample(tensor), width = graph_.tensor(tensor).shape.back();
    const std::int64_t first_column = y.columns < width ? tensor_rank_ * y.columns : 0;
    if (!is_training_ || !place.is_training) {
        std::memcpy(x.output.floats(), x.inputs[0].floats(), (y.rows * y.columns) * sizeof(float));
        return;
    }
    auto* mask = x.saved_context.as<std::uint8_t>();
    for (std::int64_t r = 0; r < y.rows; ++r) {
        const TokenPosition row = place_of(y.first_row + r, per_sample);
        const std::int64_t at = r * y.columns;
        kernels().dropout(random_key(id, place, row.sample),
                          (graph_.first_token() + row.token) * width + first_column, y.columns,
                          static_cast<float>(op(id).attributes.probability), x.inputs[0].floats() + at,
                          x.output.floats() + at, mask + at);
    }
}

void Operators::forward(model::OperatorId id, const Operands& x, const MicroBatchPosition& place) const {
    const model::Operator& o = op(id);
    const Kernels& k = kernels();
    const Sizes y = sizes_of(o.output);
    const std::int64_t count = y.rows * y.columns;
    const auto epsilon = static_cast<float>(o.attributes.epsilon);
    auto* saved_context = x.saved_context.as<float>();
    switch (o.kind) {
        case OperatorKind::input:
        case OperatorKind::flatten:
        case OperatorKind::reshape:
        case OperatorKind::parallel_enter:
        case OperatorKind::parallel_exit: return;  // views, or performed by a collective
        case OperatorKind::embedding: embedding(o, x); return;
        case OperatorKind::position_embedding: {
            const std::int64_t tokens = graph_.tensor(o.output).shape[0];
            for (std::int64_t r = 0; r < y.rows; ++r)
                k.add(
                    y.columns, x.inputs[0].floats() + r * y.columns,
                    x.parameters[0].floats() +
                        (place_of(y.first_row + r, tokens).token + o.attributes.position_offset) * y.columns,
                    x.output.floats() + r * y.columns);
            return;
        }
        case OperatorKind::linear: {
            const std::int64_t inputs = parameter_rows(o.parameters[0], 1);
            const std::int64_t rows = x.output.elements() / y.columns;  // all of them or a piece's
            const float* in = x.inputs[0].floats();
            if (o.attributes.input_scale != 1.0) {
                k.scale(rows * inputs, static_cast<float>(o.attributes.input_scale), in, saved_context);
                in = saved_context;
            }
            k.product(false, true, rows, y.columns, inputs, 1, in, inputs, x.parameters[0].floats(), inputs,
                      x.output.floats(), y.columns, false);
            // Partial sums: the bias counts once.
            const bool is_partial =
                graph_.tensor(o.output).split == model::TensorSplit::partial && context_.tensor_parallel > 1;
            if (o.attributes.has_bias && (!is_partial || tensor_rank_ == 0))
                k.add_row(rows, y.columns, x.parameters[1].floats(), x.output.floats());
            return;
        }
        case OperatorKind::layer_norm:
            k.layer_norm(y.rows, y.columns, epsilon, x.inputs[0].floats(), x.parameters[0].floats(),
                         o.attributes.has_bias ? x.parameters[1].floats() : nullptr, x.output.floats(),
                         saved_context);
            return;
        case OperatorKind::rms_norm:
            k.rms_norm(y.rows, y.columns, epsilon, x.inputs[0].floats(), x.parameters[0].floats(),
                       x.output.floats(), saved_context);
            return;
        case OperatorKind::batch_norm:
            k.batch_norm(image_shape(graph_, o, context_.micro_batch), epsilon, x.inputs[0].floats(),
                         x.parameters[0].floats(), x.parameters[1].floats(), x.output.floats(),
                         saved_context);
            return;
        case OperatorKind::attention: attention(id, x, place, nullptr, {}); return;
        case OperatorKind::gelu:
        case OperatorKind::relu:
        case OperatorKind::silu:
        case OperatorKind::tanh:
            k.unary(unary_of<Unary>(o), count, x.inputs[0].floats(), x.output.floats());
            return;
        case OperatorKind::gated_silu:
        case OperatorKind::gated_gelu:
            k.gated(unary_of<Unary>(o), y.rows, y.columns, x.inputs[0].floats(), x.output.floats());
            return;
        case OperatorKind::dropout: dropout(id, x, place); return;
        case OperatorKind::add:
            k.add(count, x.inputs[0].floats(), x.inputs[1].floats(), x.output.floats());
            return;
        case OperatorKind::conv2d:
            k.convolution(image_shape(graph_, o, context_.micro_batch), x.inputs[0].floats(),
                          x.parameters[0].floats(),
                          o.attributes.has_bias ? x.parameters[1].floats() : nullptr, x.output.floats());
            return;
        case OperatorKind::max_pool:
            k.max_pool(image_shape(graph_, o, context_.micro_batch), x.inputs[0].floats(), x.output.floats(),
                       x.saved_context.as<std::int64_t>());
            return;
        case OperatorKind::average_pool:
            k.average_pool(image_shape(graph_, o, context_.micro_batch), x.inputs[0].floats(),
                           x.output.floats());
            return;
        case OperatorKind::transpose: {
            const std::int64_t leading = graph_.tensor(o.inputs[0]).shape[0],
                               rest = count / context_.micro_batch / leading;
            for (std::int64_t b = 0; b < context_.micro_batch; ++b)
                for (std::int64_t i = 0; i < leading; ++i)
                    for (std::int64_t j = 0; j < rest; ++j)
                        x.output.floats()[(b * rest + j) * leading + i] =
                            x.inputs[0].floats()[(b * leading + i) * rest + j];
            return;
        }
        case OperatorKind::average_tokens: {
            const std::int64_t tokens = graph_.tensor(o.inputs[0]).shape[0];
            std::fill_n(x.output.floats(), count, 0.0f);
            for (std::int64_t b = 0; b < y.rows; ++b) {
                k.sum_rows(tokens, y.columns, x.inputs[0].floats() + b * tokens * y.columns,
                           x.output.floats() + b * y.columns);
                k.scale(y.columns, 1.0f / tokens, x.output.floats() + b * y.columns,
                        x.output.floats() + b * y.columns);
            }
            return;
        }
        case OperatorKind::select_first_token: {
            const std::int64_t tokens = graph_.tensor(o.inputs[0]).shape[0];
            for (std::int64_t b = 0; b < y.rows; ++b)
                std::memcpy(x.output.floats() + b * y.columns, x.inputs[0].floats() + b * tokens * y.columns,
                            y.columns * sizeof(float));
            return;
        }
        case OperatorKind::select_positions: {
            const std::int64_t tokens = graph_.tensor(o.inputs[0]).shape[0],
                               selected = graph_.tensor(o.output).shape[0];
            for (std::int64_t r = 0; r < y.rows; ++r)
                std::memcpy(
                    x.output.floats() + r * y.columns,
                    x.inputs[0].floats() + (r / selected * tokens + x.inputs[1].integers()[r]) * y.columns,
                    y.columns * sizeof(float));
            return;
        }
        case OperatorKind::loss_statistics: {
            const Classes c = classes_of(o.inputs[0]);
            k.loss_statistics(c.rows, c.columns, c.valid, c.first, x.inputs[0].floats(),
                              x.inputs[1].integers(), x.output.floats());
            return;
        }
        case OperatorKind::cross_entropy: cross_entropy(o, x); return;
        case OperatorKind::router: router(mixture_of(o), x); return;
        case OperatorKind::dispatch: dispatch(mixture_of(o), x); return;
        case OperatorKind::experts: experts(mixture_of(o), x); return;
        case OperatorKind::combine: combine(mixture_of(o), x); return;
        case OperatorKind::prepend_token:
        case OperatorKind::merge_patches:
        case OperatorKind::matrix_product:
        case OperatorKind::elementwise:
        case OperatorKind::softmax:
        case OperatorKind::normalization:
        case OperatorKind::reduce:
        case OperatorKind::concat:
        case OperatorKind::permute:
        case OperatorKind::slice:
        case OperatorKind::gather:
        case OperatorKind::pooling:
        case OperatorKind::convolution:
        case OperatorKind::unknown: break;
    }
    throw_no_kernel("forward", o.kind);
}

void Operators::backward_input(model::OperatorId id, const Operands& x, ConstTensorView given,
                               const std::vector<TensorView>& dx, const MicroBatchPosition& place) const {
    const model::Operator& o = op(id);
    const Kernels& k = kernels();
    const float* dy = given.floats();
    const Sizes y = sizes_of(o.output);
    const std::int64_t count = y.rows * y.columns;
    const auto* saved_context = x.saved_context.as<float>();
    if (o.kind == OperatorKind::add) {
        for (const TensorView& gradient : dx)
            if (gradient) k.accumulate(count, dy, gradient.floats());
        return;
    }
    if (o.kind == OperatorKind::combine)
        return combine_backward(mixture_of(o), x, dy, dx[0].floats(), dx[1].floats());
    if (dx.empty() || !dx[0]) return;
    switch (o.kind) {
        case OperatorKind::router: router_backward(mixture_of(o), x, dy, dx[0].floats(), nullptr); return;
        case OperatorKind::dispatch: dispatch_backward(mixture_of(o), x, dy, dx[0].floats()); return;
        case OperatorKind::experts: experts_backward(mixture_of(o), x, dy, dx[0].floats()); return;
        case OperatorKind::position_embedding: k.accumulate(count, dy, dx[0].floats()); return;
        case OperatorKind::linear: {
            const std::int64_t inputs = parameter_rows(o.parameters[0], 1);
            k.product(false, false, given.elements() / y.columns, inputs, y.columns,
                      static_cast<float>(o.attributes.input_scale), dy, y.columns, x.parameters[0].floats(),
                      inputs, dx[0].floats(), inputs, true);
            return;
        }
        case OperatorKind::layer_norm:
            k.layer_norm_backward(y.rows, y.columns, x.inputs[0].floats(), saved_context,
                                  x.parameters[0].floats(), dy, dx[0].floats());
            return;
        case OperatorKind::rms_norm:
            k.rms_norm_backward(y.rows, y.columns, x.inputs[0].floats(), saved_context,
                                x.parameters[0].floats(), dy, dx[0].floats());
            return;
        case OperatorKind::batch_norm:
            k.batch_norm_backward(image_shape(graph_, o, context_.micro_batch), x.inputs[0].floats(),
                                  saved_context, x.parameters[0].floats(), dy, dx[0].floats());
            return;
        case OperatorKind::attention:
            attention(
                id, x, place, dy,
                {dx[0].floats(), o.attributes.is_cross_attention ? dx[1].floats() : dx[0].floats(), nullptr});
            return;
        case OperatorKind::gelu:
        case OperatorKind::silu:
            k.unary_backward(unary_of<Unary>(o), count, x.inputs[0].floats(), dy, dx[0].floats());
            return;
        case OperatorKind::relu:
        case OperatorKind::tanh:
            k.unary_backward(unary_of<Unary>(o), count, x.output.floats(), dy, dx[0].floats());
            return;
        case OperatorKind::gated_silu:
        case OperatorKind::gated_gelu:
            k.gated_backward(unary_of<Unary>(o), y.rows, y.columns, x.inputs[0].floats(), dy, dx[0].floats());
            return;
        case OperatorKind::dropout:
            k.dropout_backward(count, static_cast<float>(o.attributes.probability),
                               x.saved_context.as<std::uint8_t>(), dy, dx[0].floats());
            return;
        case OperatorKind::conv2d:
            k.convolution_backward(image_shape(graph_, o, context_.micro_batch), x.parameters[0].floats(), dy,
                                   dx[0].floats());
            return;
        case OperatorKind::max_pool:
            k.max_pool_backward(image_shape(graph_, o, context_.micro_batch),
                                x.saved_context.as<std::int64_t>(), dy, dx[0].floats());
            return;
        case OperatorKind::average_pool:
            k.average_pool_backward(image_shape(graph_, o, context_.micro_batch), dy, dx[0].floats());
            return;
        case OperatorKind::transpose: {
            const std::int64_t leading = graph_.tensor(o.inputs[0]).shape[0],
                               rest = count / context_.micro_batch / leading;
            for (std::int64_t b = 0; b < context_.micro_batch; ++b)
                for (std::int64_t i = 0; i < leading; ++i)
                    for (std::int64_t j = 0; j < rest; ++j)
                        dx[0].floats()[(b * leading + i) * rest + j] += dy[(b * rest + j) * leading + i];
            return;
        }
        case OperatorKind::average_tokens: {
            const std::int64_t tokens = graph_.tensor(o.inputs[0]).shape[0];
            for (std::int64_t r = 0; r < y.rows * tokens; ++r)
                for (std::int64_t c = 0; c < y.columns; ++c)
                    dx[0].floats()[r * y.columns + c] += dy[r / tokens * y.columns + c] / tokens;
            return;
        }
        case OperatorKind::select_first_token: {
            const std::int64_t tokens = graph_.tensor(o.inputs[0]).shape[0];
            for (std::int64_t b = 0; b < y.rows; ++b)
                k.accumulate(y.columns, dy + b * y.columns, dx[0].floats() + b * tokens * y.columns);
            return;
        }
        case OperatorKind::select_positions: {
            const std::int64_t tokens = graph_.tensor(o.inputs[0]).shape[0],
                               selected = graph_.tensor(o.output).shape[0];
            for (std::int64_t r = 0; r < y.rows; ++r)
                k.accumulate(
                    y.columns, dy + r * y.columns,
                    dx[0].floats() + (r / selected * tokens + x.inputs[1].integers()[r]) * y.columns);
            return;
        }
        case OperatorKind::cross_entropy: cross_entropy_backward(o, x, *dy, dx[0].floats()); return;
        // Views, or performed by a collective.
        case OperatorKind::flatten:
        case OperatorKind::reshape:
        case OperatorKind::parallel_enter:
        case OperatorKind::parallel_exit: return;
        // Both gradients are added above.
        case OperatorKind::add:
        case OperatorKind::combine: return;
        // cross_entropy gives the logits' whole gradient.
        case OperatorKind::loss_statistics: return;
        case OperatorKind::input:
        case OperatorKind::embedding:
        case OperatorKind::prepend_token:
        case OperatorKind::merge_patches:
        case OperatorKind::matrix_product:
        case OperatorKind::elementwise:
        case OperatorKind::softmax:
        case OperatorKind::normalization:
        case OperatorKind::reduce:
        case OperatorKind::concat:
        case OperatorKind::permute:
        case OperatorKind::slice:
        case OperatorKind::gather:
        case OperatorKind::pooling:
        case OperatorKind::convolution:
        case OperatorKind::unknown: break;
    }
    throw_no_kernel("backward_input", o.kind);
}

void Operators::backward_weight(model::OperatorId id, const Operands& x, ConstTensorView given,
                                const std::vector<TensorView>& dparameters) const {
    const model::Operator& o = op(id);
    const Kernels& k = kernels();
    const float* dy = given.floats();
    const Sizes y = sizes_of(o.output);
    const auto* saved_context = x.saved_context.as<float>();
    switch (o.kind) {
        case OperatorKind::router:
            router_backward(mixture_of(o), x, dy, nullptr, dparameters[0].floats());
            return;
        case OperatorKind::experts:
            experts_weights(mixture_of(o), x, dy, dparameters[0].floats(), dparameters[1].floats());
            return;
        case OperatorKind::embedding: embedding_weight(o, x, dy, dparameters[0].floats()); return;
        case OperatorKind::position_embedding: {
            const std::int64_t tokens = graph_.tensor(o.output).shape[0];
            for (std::int64_t r = 0; r < y.rows; ++r)
                k.accumulate(
                    y.columns, dy + r * y.columns,
                    dparameters[0].floats() +
                        (place_of(y.first_row + r, tokens).token + o.attributes.position_offset) * y.columns);
            return;
        }
        case OperatorKind::attention: {
            if (o.attributes.query_key_norm != model::QueryKeyNorm::none) {
                const auto found = norm_gradients_.find({id.index, x.place->micro_batch, x.place->segment});
                core::require(found != norm_gradients_.end(), "backward_input comes before backward_weight");
                const std::int64_t d = o.attributes.head_dimension;
                for (std::int64_t i = 0; i < 2; ++i)
                    k.accumulate(d, found->second.data() + i * d, dparameters[i].floats());
                norm_gradients_.erase(found);
                return;
            }
            // The scores' gradient once more: backward_input keeps nothing.
            std::vector<float> unwanted(elements(o.inputs[0]));
            attention(id, x, *x.place, dy, {unwanted.data(), unwanted.data(), dparameters[0].floats()});
            return;
        }
        case OperatorKind::linear: {
            const std::int64_t inputs = parameter_rows(o.parameters[0], 1);
            const float* in = o.attributes.input_scale != 1.0 ? saved_context : x.inputs[0].floats();
            k.product(true, false, y.columns, inputs, y.rows, 1, dy, y.columns, in, inputs,
                      dparameters[0].floats(), inputs, true);
            if (o.attributes.has_bias) k.sum_rows(y.rows, y.columns, dy, dparameters[1].floats());
            return;
        }
        case OperatorKind::layer_norm:
            k.layer_norm_weights(y.rows, y.columns, x.inputs[0].floats(), saved_context, dy,
                                 dparameters[0].floats(),
                                 o.attributes.has_bias ? dparameters[1].floats() : nullptr);
            return;
        case OperatorKind::rms_norm:
            k.rms_norm_weights(y.rows, y.columns, x.inputs[0].floats(), saved_context, dy,
                               dparameters[0].floats());
            return;
        case OperatorKind::batch_norm:
            k.batch_norm_weights(image_shape(graph_, o, context_.micro_batch), x.inputs[0].floats(),
                                 saved_context, dy, dparameters[0].floats(), dparameters[1].floats());
            return;
        case OperatorKind::conv2d:
            k.convolution_weights(image_shape(graph_, o, context_.micro_batch), x.inputs[0].floats(), dy,
                                  dparameters[0].floats(),
                                  o.attributes.has_bias ? dparameters[1].floats() : nullptr);
            return;
        case OperatorKind::input:
        case OperatorKind::prepend_token:
        case OperatorKind::gelu:
        case OperatorKind::relu:
        case OperatorKind::silu:
        case OperatorKind::tanh:
        case OperatorKind::gated_silu:
        case OperatorKind::gated_gelu:
        case OperatorKind::dropout:
        case OperatorKind::add:
        case OperatorKind::max_pool:
        case OperatorKind::average_pool:
        case OperatorKind::flatten:
        case OperatorKind::reshape:
        case OperatorKind::transpose:
        case OperatorKind::merge_patches:
        case OperatorKind::average_tokens:
        case OperatorKind::select_first_token:
        case OperatorKind::select_positions:
        case OperatorKind::dispatch:
        case OperatorKind::combine:
        case OperatorKind::parallel_enter:
        case OperatorKind::parallel_exit:
        case OperatorKind::loss_statistics:
        case OperatorKind::cross_entropy:
        case OperatorKind::matrix_product:
        case OperatorKind::elementwise:
        case OperatorKind::softmax:
        case OperatorKind::normalization:
        case OperatorKind::reduce:
        case OperatorKind::concat:
        case OperatorKind::permute:
        case OperatorKind::slice:
        case OperatorKind::gather:
        case OperatorKind::pooling:
        case OperatorKind::convolution:
        case OperatorKind::unknown: break;
    }
    throw_no_kernel("backward_weight", o.kind);
}

}  // namespace exec::cpu
