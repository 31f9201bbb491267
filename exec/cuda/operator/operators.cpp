#include "exec/cuda/operator/operators.h"

#include <algorithm>

#include <fmt/core.h>

#include "exec/unary.h"
#include "model/operators/fp8_products.h"
#include "model/operators/rank_share.h"

namespace exec::cuda {

using model::OperatorKind;

namespace {

// obstacle() refuses such operators before anything runs.
core::InternalError without_kernel(const model::Operator& op, std::string_view what) {
    return core::InternalError(
        fmt::format("operator {} of kind {} has no kernel for {}", op.name, model::name_of(op.kind), what));
}

}  // namespace

Type type_of(core::DataType type) {
    switch (type) {
        case core::DataType::fp32:
        case core::DataType::tf32: return Type::fp32;
        case core::DataType::bf16: return Type::bf16;
        case core::DataType::fp16: return Type::fp16;
        case core::DataType::fp8:
        case core::DataType::int64: break;
    }
    throw core::InternalError(fmt::format("kernels on GPUs have no arrays of {}", core::name_of(type)));
}

Operators::Operators(const model::ModelGraph& graph, const schedule::Plan& plan, int tensor_rank,
                     int context_rank, bool is_training, std::shared_ptr<const AttentionTables> tables,
                     Machine& machine, ExecutionContext& execution)
    : graph_(graph),
      plan_(plan),
      context_(plan.cost_context()),
      tensor_rank_(tensor_rank),
      context_rank_(context_rank),
      is_training_(is_training),
      machine_(machine),
      kernels_(machine.kernels()),
      execution_(execution),
      type_(type_of(plan.precision.activations())),
      parameter_type_(type_of(plan.precision.parameters)),
      gradient_type_(type_of(plan.precision.gradients)),
      tables_(std::move(tables)),
      is_in_fp8_(graph.operators.size(), 0),
      fusion_(std::make_unique<Fusion>(machine, execution, type_)) {
    for (std::size_t i = 0; plan.precision.compute == core::DataType::fp8 && i < graph.operators.size(); ++i)
        is_in_fp8_[i] =
            !model::fp8_unsupported(graph, model::OperatorId(static_cast<std::int32_t>(i)), context_);
}

Operators::~Operators() = default;

std::optional<core::Unsupported> Operators::unsupported(const model::ModelGraph&, const model::Operator& op) {
    switch (op.kind) {
        case OperatorKind::input:
        case OperatorKind::embedding:
        case OperatorKind::position_embedding:
        case OperatorKind::linear:
        case OperatorKind::layer_norm:
        case OperatorKind::rms_norm:
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
        case OperatorKind::average_tokens:
        case OperatorKind::select_first_token:
        case OperatorKind::select_positions:
        case OperatorKind::parallel_enter:
        case OperatorKind::parallel_exit:
        case OperatorKind::loss_statistics:
        case OperatorKind::cross_entropy: break;
        case OperatorKind::conv2d: break;
        case OperatorKind::router:
        case OperatorKind::dispatch:
        case OperatorKind::experts:
        case OperatorKind::combine:
            if (op.attributes.experts_per_token > 32)
                return core::Unsupported{"more than 32 experts a token"};
            break;
        case OperatorKind::batch_norm:
            if (op.attributes.has_fixed_statistics)
                return core::Unsupported{"batch norm with fixed statistics"};
            break;
        case OperatorKind::attention:
            if (const auto extension = model::attention_extension(op.attributes))
                return core::Unsupported{fmt::format("attention with {}", *extension)};
            if (op.attributes.has_relative_bias)
                return core::Unsupported{"attention with a relative position bias"};
            if (op.attributes.has_relative_positions)
                return core::Unsupported{"attention with relative positions"};
            if (op.attributes.is_cross_attention) return core::Unsupported{"cross-attention"};
            if (op.attributes.local_window > 0) return core::Unsupported{"attention inside local windows"};
            break;
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
        case OperatorKind::unknown:
            return core::Unsupported{fmt::format("operators of kind {}", model::name_of(op.kind))};
    }
    if (model::has_extended_routing(op.attributes))
        return core::Unsupported{"mixtures with biases or with a rule of their own for choices and weights"};
    if (op.attributes.is_frozen)
        return core::Unsupported{fmt::format("frozen operators of kind {}", model::name_of(op.kind))};
    return std::nullopt;
}

Operators::Sizes Operators::sizes_of(model::TensorId tensor) const {
    const model::RankMatrix matrix = model::rank_matrix(graph_, tensor, context_);
    Sizes sizes{matrix.rows, matrix.columns, 0};
    const std::int64_t whole = rows_per_sample(tensor) * context_.micro_batch / context_.context_parallel;
    if (sizes.rows < whole) sizes.first_row = tensor_rank_ * sizes.rows;
    return sizes;
}

// A segment's; of divided sequences the same as context_parallel.h lists.
TokenRange Operators::token_range() const {
    if (graph_.part.index > 0) return {graph_.tokens_per_sample, graph_.first_token(), 0};
    return context_.context_parallel == 1 ? TokenRange{} : token_range_of(context_rank_);
}

TokenRange Operators::token_range_of(std::int64_t context_rank) const {
    const std::int64_t degree = context_.context_parallel, part = graph_.tokens_per_sample / (2 * degree);
    return {part, context_rank * part, (2 * degree - 1 - context_rank) * part};
}

std::int64_t Operators::rows_per_sample(model::TensorId tensor) const {
    const model::Tensor& t = graph_.tensor(tensor);
    std::int64_t rows = 1;
    for (std::size_t i = 0; i + 1 < t.shape.size(); ++i) rows *= t.shape[i];
    return rows;
}

std::int64_t Operators::extent(model::ParameterId parameter, int dimension) const {
    return model::rank_extent(graph_.parameter(parameter), dimension, context_);
}

ClassShape Operators::classes_of(const model::Operator& o) const {
    const Sizes logits = sizes_of(o.inputs[0]);
    const std::int64_t whole = graph_.tensor(o.inputs[0]).shape.back();
    const bool is_split = logits.columns < whole;
    ClassShape shape;
    shape.rows = logits.rows;
    shape.columns = logits.columns;
    shape.first_class = is_split ? tensor_rank_ * logits.columns : 0;
    shape.valid = std::clamp<std::int64_t>(whole - shape.first_class, 0, logits.columns);
    shape.blocks = is_split ? context_.tensor_parallel : 1;
    shape.is_across = is_stored_across(o.inputs[0]);
    return shape;
}

ImageShape Operators::image_shape(const model::Operator& o) const {
    const std::vector<std::int64_t>&in = graph_.tensor(o.inputs[0]).shape,
          &out = graph_.tensor(o.output).shape;
    return {context_.micro_batch,
            in[0],
            in[1],
            in[2],
            out[0],
            out[1],
            out[2],
            o.attributes.kernel_y,
            o.attributes.kernel_x,
            o.attributes.stride,
            o.attributes.padding};
}

Product Operators::product() const {
    Product p;
    p.in = p.out = type_;
    p.uses_tf32 = plan_.precision.compute == core::DataType::tf32;
    return p;
}

const void* Operators::weight(const ConstTensorView& parameter, int slot) const {
    if (parameter_type_ == type_) return parameter.data();
    void* copy = execution_.scratch(slot, parameter.elements() * size_of(type_));
    kernels_.cast(execution_.stream(), parameter_type_, type_, parameter.elements(), parameter.data(), copy);
    return copy;
}

Sums Operators::sums(const TensorView& gradient) const {
    return {gradient.data(), gradient_type_, !execution_.takes_over_zeros(gradient.data(), gradient.bytes())};
}

Sums Operators::added_sums(const TensorView& gradient) const {
    execution_.clear_zeros(gradient.data(), gradient.bytes());
    return {gradient.data(), gradient_type_, true};
}

bool Operators::accumulates(const TensorView& dx) const {
    if (execution_.takes_over_zeros(dx.data(), dx.bytes())) return false;
    fusion_->copy_now(dx.data());
    return true;
}

const void* Operators::base_of(const TensorView& dx) const {
    return execution_.takes_over_zeros(dx.data(), dx.bytes()) ? nullptr : fusion_->take_contents(dx.data());
}

bool Operators::is_identity(const model::Operator& o) const {
    if (o.kind == OperatorKind::parallel_enter || o.kind == OperatorKind::parallel_exit)
        return context_.tensor_parallel == 1;
    return model::is_view(o.kind);
}

const model::Operator* Operators::only_reader(model::TensorId tensor) const {
    for (;;) {
        const std::vector<model::OperatorId>& consumers = graph_.tensor(tensor).consumers;
        if (consumers.size() != 1) return nullptr;
        const model::Operator& reader = op(consumers[0]);
        if (!is_identity(reader)) return &reader;
        tensor = reader.output;
    }
}

void Operators::forward(model::OperatorId id, const Operands& x, const MicroBatchPosition& position) const {
    const model::Operator& o = op(id);
    if (is_identity(o)) return;
    if (is_approximate_gelu(o) && gelu_with_product(x)) return;
    if (o.kind == OperatorKind::add) return add(id, x);
    if (o.kind == OperatorKind::layer_norm || o.kind == OperatorKind::rms_norm) return norm(o, x);
    fusion_->flush();
    const Stream s = execution_.stream();
    const Sizes y = sizes_of(o.output);
    auto* saved_context = x.saved_context.as<float>();
    switch (o.kind) {
        case OperatorKind::embedding: {
            const std::int64_t table = extent(o.parameters[0], 0),
                               whole = graph_.parameter(o.parameters[0]).shape[0];
            kernels_.embedding(s, type_, y.rows, y.columns, table < whole ? tensor_rank_ * table : 0, table,
                               x.inputs[0].integers() + y.first_row, values(x.parameters[0]),
                               x.output.data());
            return;
        }
        case OperatorKind::position_embedding:
            kernels_.positions(s, type_, y.rows, y.columns,
                               graph_.tensor(o.output).shape[0] / context_.context_parallel, positions(),
                               y.first_row, o.attributes.position_offset, x.inputs[0].data(),
                               values(x.parameters[0]), x.output.data());
            return;
        case OperatorKind::linear: linear(id, x); return;
        case OperatorKind::batch_norm:
            kernels_.batch_norm(s, type_, image_shape(o), static_cast<float>(o.attributes.epsilon),
                                x.inputs[0].data(), values(x.parameters[0]), values(x.parameters[1]),
                                x.output.data(), saved_context);
            return;
        case OperatorKind::attention: attention(id, x, position.micro_batch); return;
        case OperatorKind::gelu:
        case OperatorKind::relu:
        case OperatorKind::silu:
        case OperatorKind::tanh:
            kernels_.unary(s, type_, unary_of<Unary>(o), y.count(), x.inputs[0].data(), x.output.data());
            return;
        case OperatorKind::gated_silu:
        case OperatorKind::gated_gelu:
            if (gated_with_octets(o, x)) return;
            kernels_.gated(s, type_, unary_of<Unary>(o), y.rows, y.columns, x.inputs[0].data(),
                           x.output.data());
            return;
        case OperatorKind::dropout: {
            if (!is_training_) {
                machine_.copy(s, x.output.data(), x.inputs[0].data(), y.count() * size_of(type_));
                return;
            }
            const std::int64_t width = graph_.tensor(o.output).shape.back();
            const HeldDropout dropout{
                {y.rows, y.columns, rows_per_sample(o.output) / context_.context_parallel, width, y.first_row,
                 y.columns < width ? tensor_rank_ * y.columns : 0,
                 static_cast<float>(o.attributes.probability), execution_.mask_keys(id, position.micro_batch),
                 token_range()},
                x.inputs[0].data(),
                x.output.data(),
                x.saved_context.as<std::uint8_t>()};
            const model::Operator* reader = only_reader(o.output);
            if (reader && reader->kind == OperatorKind::add) fusion_->hold(id.index, dropout);
            else fusion_->launch(dropout, nullptr);
            return;
        }
        case OperatorKind::conv2d: {
            const ImageShape shape = image_shape(o);
            machine_.convolution(s, ConvolutionPass::forward, type_, shape, x.inputs[0].data(),
                                 weight(x.parameters[0], weight_slot), x.output.data(), false);
            if (o.attributes.has_bias)
                kernels_.add_channel_bias(s, type_, shape, values(x.parameters[1]), x.output.data());
            return;
        }
        case OperatorKind::max_pool:
            kernels_.max_pool(s, type_, image_shape(o), x.inputs[0].data(), x.output.data(),
                              x.saved_context.as<std::int64_t>());
            return;
        case OperatorKind::average_pool:
            kernels_.average_pool(s, type_, image_shape(o), x.inputs[0].data(), x.output.data());
            return;
        case OperatorKind::transpose: {
            const std::int64_t leading = graph_.tensor(o.inputs[0]).shape[0];
            kernels_.transpose(s, type_, context_.micro_batch, leading,
                               y.count() / context_.micro_batch / leading, x.inputs[0].data(),
                               x.output.data(), false);
            return;
        }
        case OperatorKind::average_tokens:
            kernels_.average_tokens(s, type_, y.rows, graph_.tensor(o.inputs[0]).shape[0], y.columns,
                                    x.inputs[0].data(), x.output.data());
            return;
        case OperatorKind::select_first_token:
            kernels_.select(s, type_, y.rows, 1, graph_.tensor(o.inputs[0]).shape[0], y.columns, nullptr,
                            x.inputs[0].data(), x.output.data());
            return;
        case OperatorKind::select_positions:
            kernels_.select(s, type_, y.rows, graph_.tensor(o.output).shape[0],
                            graph_.tensor(o.inputs[0]).shape[0], y.columns, x.inputs[1].integers(),
                            x.inputs[0].data(), x.output.data());
            return;
        case OperatorKind::loss_statistics: {
            const ClassShape classes = classes_of(o);
            kernels_.loss_statistics(s, type_, classes, x.inputs[0].data(), x.inputs[1].integers(),
                                     x.output.floats(),
                                     execution_.scratch(loss_slot, loss_workspace(classes)));
            return;
        }
        case OperatorKind::cross_entropy:
            kernels_.cross_entropy(s, type_, classes_of(o), x.inputs[0].data(), x.inputs[1].floats(),
                                   x.output.floats(), y.count(),
                                   context_.fused_cross_entropy ? nullptr : saved_context);
            return;
        case OperatorKind::router: router(o, x); return;
        case OperatorKind::dispatch: dispatch(o, x); return;
        case OperatorKind::experts: experts(id, x); return;
        case OperatorKind::combine:
            kernels_.combine(s, type_, routing_shape(o), routing(o, x.inputs[1].data()), x.inputs[0].data(),
                             x.output.data());
            return;
        case OperatorKind::input:
        case OperatorKind::flatten:
        case OperatorKind::reshape:
        case OperatorKind::parallel_enter:
        case OperatorKind::parallel_exit: return;  // views, and what a collective performs
        case OperatorKind::add:                    // returned above, before the flush
        case OperatorKind::layer_norm:
        case OperatorKind::rms_norm:
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
    throw without_kernel(o, "forward");
}

void Operators::backward_input(model::OperatorId id, const Operands& x, ConstTensorView given,
                               const std::vector<TensorView>& dx, const MicroBatchPosition& position) const {
    const model::Operator& o = op(id);
    if (is_approximate_gelu(o) && dx[0] && gelu_backward_with_product(o, x, given.data(), dx[0])) return;
    fusion_->flush();
    if (is_identity(o)) return;  // the gradient of its input is this one, and is still to be read
    // The weight of a micro-batch is in host memory.
    const bool is_loss = o.kind == OperatorKind::cross_entropy;
    const void* dy = is_loss ? given.data() : contents_of_gradient(o, given.data());
    if (o.kind == OperatorKind::add) return add_backward(o, dy, dx);
    if (o.kind == OperatorKind::combine) return combine_backward(o, x, dy, dx);
    if (o.kind == OperatorKind::experts) return experts_backward(id, x, dy, dx[0]);
    if (dx.empty() || !dx[0]) return;
    const Stream s = execution_.stream();
    const Sizes y = sizes_of(o.output);
    const auto* saved_context = x.saved_context.as<float>();
    const auto adds = [&] { return accumulates(dx[0]); };
    // For what adds to few elements of an array that must be clear.
    const auto clear = [&] {
        execution_.clear_zeros(dx[0].data(), dx[0].bytes());
        fusion_->copy_now(dx[0].data());
    };
    switch (o.kind) {
        case OperatorKind::position_embedding: add_backward(o, dy, dx); return;
        case OperatorKind::router: router_backward(o, x, dy, dx[0]); return;
        case OperatorKind::dispatch:
            kernels_.dispatch_backward(s, type_, routing_shape(o), routing(o, x.inputs[1].data()), dy,
                                       dx[0].data(), adds());
            return;
        case OperatorKind::linear: linear_backward(id, x, dy, dx[0]); return;
        case OperatorKind::layer_norm:
        case OperatorKind::rms_norm: norm_backward(id, x, dy, dx[0]); return;
        case OperatorKind::batch_norm:
            kernels_.batch_norm_backward(s, type_, image_shape(o), x.inputs[0].data(), saved_context,
                                         values(x.parameters[0]), dy, dx[0].data(), adds());
            return;
        case OperatorKind::attention: attention_backward(id, x, dy, dx[0], position.micro_batch); return;
        case OperatorKind::gelu:
        case OperatorKind::silu:
            kernels_.unary_backward(s, type_, unary_of<Unary>(o), y.count(), x.inputs[0].data(), dy,
                                    dx[0].data(), adds());
            return;
        case OperatorKind::relu:
        case OperatorKind::tanh:
            kernels_.unary_backward(s, type_, unary_of<Unary>(o), y.count(), x.output.data(), dy,
                                    dx[0].data(), adds());
            return;
        case OperatorKind::gated_silu:
        case OperatorKind::gated_gelu:
            kernels_.gated_backward(s, type_, unary_of<Unary>(o), y.rows, y.columns, x.inputs[0].data(), dy,
                                    dx[0].data(), adds());
            return;
        case OperatorKind::dropout:
            kernels_.dropout_backward(s, type_, y.count(), static_cast<float>(o.attributes.probability),
                                      x.saved_context.as<std::uint8_t>(), dy, dx[0].data(), adds());
            return;
        case OperatorKind::conv2d:
            machine_.convolution(s, ConvolutionPass::input, type_, image_shape(o), dy,
                                 weight(x.parameters[0], weight_slot), dx[0].data(), adds());
            return;
        case OperatorKind::max_pool:
            kernels_.max_pool_backward(s, type_, image_shape(o), x.saved_context.as<std::int64_t>(), dy,
                                       dx[0].data(), adds());
            return;
        case OperatorKind::average_pool:
            kernels_.average_pool_backward(s, type_, image_shape(o), dy, dx[0].data(), adds());
            return;
        case OperatorKind::transpose: {
            const std::int64_t leading = graph_.tensor(o.inputs[0]).shape[0];
            kernels_.transpose(s, type_, context_.micro_batch, y.count() / context_.micro_batch / leading,
                               leading, dy, dx[0].data(), adds());
            return;
        }
        case OperatorKind::average_tokens:
            kernels_.average_tokens_backward(s, type_, y.rows, graph_.tensor(o.inputs[0]).shape[0], y.columns,
                                             dy, dx[0].data(), adds());
            return;
        case OperatorKind::select_first_token:
            clear();
            kernels_.select_backward(s, type_, y.rows, 1, graph_.tensor(o.inputs[0]).shape[0], y.columns,
                                     nullptr, dy, dx[0].data());
            return;
        case OperatorKind::select_positions:
            clear();
            kernels_.select_backward(s, type_, y.rows, graph_.tensor(o.output).shape[0],
                                     graph_.tensor(o.inputs[0]).shape[0], y.columns, x.inputs[1].integers(),
                                     dy, dx[0].data());
            return;
        case OperatorKind::cross_entropy: {
            const ClassShape classes = classes_of(o);
            const bool is_in_place = dx[0].data() == x.inputs[0].data();
            kernels_.cross_entropy_backward(s, type_, classes, *given.floats() / classes.rows,
                                            execution_.factors(), x.inputs[0].data(), x.inputs[1].floats(),
                                            context_.fused_cross_entropy ? nullptr : saved_context,
                                            x.inputs[2].integers(), dx[0].data(), !is_in_place && adds());
            return;
        }
        // Returned above, before the check of dx[0].
        case OperatorKind::add:
        case OperatorKind::combine:
        case OperatorKind::experts:
        // Gradients of views are the arrays of their inputs, and data has none: dx[0] is null.
        case OperatorKind::input:
        case OperatorKind::embedding:
        case OperatorKind::flatten:
        case OperatorKind::reshape:
        case OperatorKind::parallel_enter:
        case OperatorKind::parallel_exit:
        case OperatorKind::loss_statistics:
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
    throw without_kernel(o, "the gradient of its input");
}

void Operators::backward_weight(model::OperatorId id, const Operands& x, ConstTensorView given,
                                const std::vector<TensorView>& dparameters) const {
    const model::Operator& o = op(id);
    if (fusion_->owner() != id.index) fusion_->flush();  // its own product may wait for the operator before
    const void* dy = contents_of_gradient(o, given.data());
    const Stream s = execution_.stream();
    const Sizes y = sizes_of(o.output);
    const auto* saved_context = x.saved_context.as<float>();
    switch (o.kind) {
        case OperatorKind::embedding: {
            const std::int64_t table = extent(o.parameters[0], 0),
                               whole = graph_.parameter(o.parameters[0]).shape[0];
            kernels_.embedding_weight(s, type_, y.rows, y.columns, table < whole ? tensor_rank_ * table : 0,
                                      table, x.inputs[0].integers() + y.first_row, dy,
                                      added_sums(dparameters[0]),
                                      execution_.scratch(sums_slot, embedding_workspace(y.rows, y.columns)));
            return;
        }
        case OperatorKind::position_embedding:
            kernels_.positions_weight(
                s, type_, y.rows, y.columns, graph_.tensor(o.output).shape[0] / context_.context_parallel,
                positions(), y.first_row, o.attributes.position_offset, dy, added_sums(dparameters[0]));
            return;
        case OperatorKind::linear: linear_weights(id, x, dy, dparameters); return;
        case OperatorKind::router: router_weights(o, x, dy, dparameters[0]); return;
        case OperatorKind::experts: experts_weights(id, x, dy, dparameters); return;
        case OperatorKind::layer_norm:
        case OperatorKind::rms_norm: norm_weights(id, x, dy, dparameters); return;
        case OperatorKind::batch_norm:
            kernels_.batch_norm_weights(s, type_, image_shape(o), x.inputs[0].data(), saved_context, dy,
                                        sums(dparameters[0]), sums(dparameters[1]));
            return;
        case OperatorKind::conv2d: {
            const ImageShape shape = image_shape(o);
            const Sums weights = sums(dparameters[0]);
            if (gradient_type_ == type_) {
                machine_.convolution(s, ConvolutionPass::weight, type_, shape, x.inputs[0].data(), dy,
                                     dparameters[0].data(), weights.accumulates);
            } else {
                const std::int64_t count = model::parameter_elements(graph_, o.parameters[0], context_);
                void* own = execution_.scratch(gradient_slot, count * size_of(type_));
                void* wide = execution_.scratch(partial_slot, count * size_of(gradient_type_));
                machine_.convolution(s, ConvolutionPass::weight, type_, shape, x.inputs[0].data(), dy, own,
                                     false);
                kernels_.cast(s, type_, gradient_type_, count, own,
                              weights.accumulates ? wide : dparameters[0].data());
                if (weights.accumulates)
                    kernels_.scale(s, gradient_type_, count, 1.0f, wide, dparameters[0].data(), true);
            }
            if (o.attributes.has_bias) kernels_.channel_sums(s, type_, shape, dy, sums(dparameters[1]));
            return;
        }
        // Without parameters, or with parameters that no kernel here reads.
        case OperatorKind::input:
        case OperatorKind::prepend_token:
        case OperatorKind::attention:
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
    throw without_kernel(o, "the gradient of its parameters");
}

}  // namespace exec::cuda
