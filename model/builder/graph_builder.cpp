#include "model/builder/graph_builder.h"

#include <cmath>
#include <utility>

#include "core/errors.h"
#include "core/index/integers.h"

namespace model {

namespace {

Tensor activation(std::vector<std::int64_t> shape, TensorSplit split = TensorSplit::whole,
                  std::optional<int> split_dimension = std::nullopt) {
    Tensor tensor;
    tensor.shape = std::move(shape);
    tensor.split = split;
    tensor.split_dimension = split_dimension;
    return tensor;
}

// Of the initial values of a class token.
constexpr double token_deviation = 0.02;

Parameter weight(std::vector<std::int64_t> shape, double deviation) {
    Parameter parameter;
    parameter.shape = std::move(shape);
    parameter.deviation = deviation;
    return parameter;
}

// Norms and biases: no weight decay, constant at the start.
Parameter constant(std::int64_t extent, Initialization initialization) {
    Parameter parameter;
    parameter.shape = {extent};
    parameter.initialization = initialization;
    parameter.deviation = 0;
    parameter.decays = false;
    return parameter;
}

std::int64_t pooled(std::int64_t extent, const Attributes& a, std::int64_t kernel) {
    return (extent + 2 * a.padding - kernel) / a.stride + 1;
}

}  // namespace

GraphBuilder::GraphBuilder(std::string name, std::string family) {
    graph_.name = std::move(name);
    graph_.family = std::move(family);
    graph_.modules.push_back({"", std::nullopt, {}, {}});
    open_modules_.push_back(0);
}

void GraphBuilder::begin_unit(std::string name) {
    const auto next = core::count_of(graph_.operators);
    if (!graph_.units.empty()) graph_.units.back().operators.end = next;
    graph_.units.push_back({std::move(name), {next, next}});
}

void GraphBuilder::open(std::string name) {
    const auto next = core::count_of(graph_.operators);
    const auto id = core::count_of(graph_.modules);
    prefix_ += name + ".";
    graph_.modules.push_back({std::move(name), open_modules_.back(), {}, {next, next}});
    graph_.modules[open_modules_.back()].children.push_back(id);
    open_modules_.push_back(id);
}

void GraphBuilder::close() {
    core::require(open_modules_.size() > 1, "a builder closes only modules it opened");
    Module& module = graph_.modules[open_modules_.back()];
    module.operators.end = core::count_of(graph_.operators);
    prefix_.resize(prefix_.size() - module.name.size() - 1);
    open_modules_.pop_back();
}

std::string GraphBuilder::path_of(const std::string& name) const { return prefix_ + name; }

ParameterId GraphBuilder::parameter(const std::string& name, Parameter description) {
    description.name = path_of(name);
    graph_.parameters.push_back(std::move(description));
    return ParameterId(core::count_of(graph_.parameters) - 1);
}

Tensor GraphBuilder::like(TensorId x) const {
    const Tensor& source = graph_.tensor(x);
    Tensor tensor = activation(source.shape, source.split, source.split_dimension);
    tensor.is_activation = source.is_activation;
    tensor.type = source.type;
    return tensor;
}

TensorId GraphBuilder::append(OperatorKind kind, const std::string& name, std::vector<TensorId> inputs,
                              std::vector<ParameterId> parameters, Tensor output,
                              const Attributes& attributes) {
    core::require(!graph_.units.empty(), "a builder begins a unit before it adds operators");
    const OperatorId id(core::count_of(graph_.operators));
    const TensorId result(core::count_of(graph_.tensors));
    for (TensorId tensor : inputs) {
        auto& consumers = graph_.tensors[tensor.index].consumers;
        if (consumers.empty() || consumers.back() != id) consumers.push_back(id);
    }
    output.name = path_of(name);
    output.producer = id;

    Operator op;
    op.kind = kind;
    op.name = output.name;
    op.inputs = std::move(inputs);
    op.output = result;
    op.parameters = std::move(parameters);
    op.attributes = attributes;
    op.unit = core::count_of(graph_.units) - 1;
    op.in_parallel_region = in_region_;
    op.in_attention_core = kind == OperatorKind::attention;

    const auto leaf = core::count_of(graph_.modules);
    graph_.modules.push_back({name, open_modules_.back(), {}, {id.index, id.index + 1}});
    graph_.modules[open_modules_.back()].children.push_back(leaf);
    graph_.tensors.push_back(std::move(output));
    graph_.operators.push_back(std::move(op));
    return result;
}

TensorId GraphBuilder::input(const std::string& name, std::vector<std::int64_t> shape, core::DataType type) {
    Tensor tensor = activation(std::move(shape));
    tensor.is_activation = type != core::DataType::int64;
    tensor.type = type;
    return append(OperatorKind::input, name, {}, {}, std::move(tensor));
}

TensorId GraphBuilder::embedding(const std::string& name, TensorId ids, ParameterId table) {
    const bool is_split = in_region_ && graph_.parameter(table).split_dimension == 0;
    return append(OperatorKind::embedding, name, {ids}, {table},
                  activation({shape(ids)[0], graph_.parameter(table).shape[1]},
                             is_split ? TensorSplit::partial : TensorSplit::whole));
}

TensorId GraphBuilder::position_embedding(const std::string& name, TensorId x, std::int64_t positions,
                                          std::int64_t offset, double deviation) {
    Attributes attributes;
    attributes.position_offset = offset;
    return append(OperatorKind::position_embedding, name, {x},
                  {parameter(name + ".weight", weight({positions, shape(x)[1]}, deviation))}, like(x),
                  attributes);
}

TensorId GraphBuilder::prepend_token(const std::string& name, TensorId x) {
    return append(OperatorKind::prepend_token, name, {x},
                  {parameter(name + ".weight", weight({1, shape(x)[1]}, token_deviation))},
                  activation({shape(x)[0] + 1, shape(x)[1]}));
}

TensorId GraphBuilder::linear(const std::string& name, TensorId x, std::int64_t outputs,
                              const LinearOptions& options) {
    using Split = LinearOptions::Split;
    std::vector<std::int64_t> result_shape = shape(x);
    const std::int64_t inputs = result_shape.back();
    result_shape.back() = outputs;

    std::vector<ParameterId> parameters{options.tied_weight};
    if (!options.tied_weight.is_valid()) {
        Parameter description = weight({outputs, inputs}, options.deviation);
        if (options.split == Split::row) description.split_dimension = 1;
        if (options.split == Split::column) {
            description.split_dimension = 0;
            description.split_blocks = options.split_blocks;
            description.split_sections = options.split_sections;
        }
        description.is_task_head = options.is_task_head;
        description.has_partial_gradient = options.has_partial_gradient;
        parameters[0] = parameter(name + ".weight", std::move(description));
    }
    if (options.has_bias) {
        Parameter description = constant(outputs, Initialization::zeros);
        if (options.split == Split::column) {
            description.split_dimension = 0;
            description.split_blocks = options.split_blocks;
            description.split_sections = options.split_sections;
        }
        description.is_task_head = options.is_task_head;
        parameters.push_back(parameter(name + ".bias", std::move(description)));
    }
    Attributes attributes;
    attributes.has_bias = options.has_bias;
    attributes.input_scale = options.input_scale;
    const int last = core::count_of(result_shape) - 1;
    Tensor output = options.split == Split::column
                        ? activation(std::move(result_shape), TensorSplit::split, last)
                    : options.split == Split::row ? activation(std::move(result_shape), TensorSplit::partial)
                                                  : activation(std::move(result_shape));
    return append(OperatorKind::linear, name, {x}, std::move(parameters), std::move(output), attributes);
}

TensorId GraphBuilder::layer_norm(const std::string& name, TensorId x, double epsilon, bool has_shift,
                                  bool is_task_head) {
    Attributes attributes;
    attributes.epsilon = epsilon;
    attributes.has_bias = has_shift;
    Parameter scale = constant(shape(x).back(), Initialization::ones);
    scale.is_task_head = is_task_head;
    std::vector<ParameterId> parameters{parameter(name + ".scale", scale)};
    if (has_shift) {
        scale.initialization = Initialization::zeros;
        parameters.push_back(parameter(name + ".shift", scale));
    }
    return append(OperatorKind::layer_norm, name, {x}, std::move(parameters), like(x), attributes);
}

TensorId GraphBuilder::rms_norm(const std::string& name, TensorId x, double epsilon) {
    Attributes attributes;
    attributes.epsilon = epsilon;
    return append(OperatorKind::rms_norm, name, {x},
                  {parameter(name + ".scale", constant(shape(x).back(), Initialization::ones))}, like(x),
                  attributes);
}

TensorId GraphBuilder::batch_norm(const std::string& name, TensorId x) {
    Attributes attributes;
    attributes.has_bias = true;
    const std::int64_t channels = shape(x)[0];
    const ParameterId scale = parameter(name + ".scale", constant(channels, Initialization::ones));
    const ParameterId shift = parameter(name + ".shift", constant(channels, Initialization::zeros));
    return append(OperatorKind::batch_norm, name, {x}, {scale, shift}, like(x), attributes);
}

TensorId GraphBuilder::attention(const std::string& name, TensorId query, TensorId key_value,
                                 const Attributes& attributes, ParameterId relative_bias,
                                 const std::vector<ParameterId>& norms_and_sinks) {
    std::vector<TensorId> inputs{query};
    if (key_value.is_valid()) inputs.push_back(key_value);
    std::vector<ParameterId> parameters;
    if (relative_bias.is_valid()) parameters.push_back(relative_bias);
    parameters.insert(parameters.end(), norms_and_sinks.begin(), norms_and_sinks.end());
    const Tensor& q = graph_.tensor(query);
    return append(
        OperatorKind::attention, name, std::move(inputs), std::move(parameters),
        activation({q.shape[0], attributes.heads * value_dimension(attributes)}, q.split, q.split_dimension),
        attributes);
}

TensorId GraphBuilder::plain_norm(const std::string& name, TensorId x, double epsilon) {
    Attributes attributes;
    attributes.epsilon = epsilon;
    return append(OperatorKind::normalization, name, {x}, {}, like(x), attributes);
}

TensorId GraphBuilder::elementwise(const std::string& name, std::vector<TensorId> inputs, bool saves_inputs) {
    Attributes attributes;
    attributes.saves_inputs = saves_inputs;
    Tensor output = like(inputs[0]);
    return append(OperatorKind::elementwise, name, std::move(inputs), {}, std::move(output), attributes);
}

TensorId GraphBuilder::join_columns(const std::string& name, std::vector<TensorId> inputs,
                                    std::int64_t columns, TensorSplit split) {
    const std::int64_t rows = shape(inputs[0])[0];
    return append(
        OperatorKind::concat, name, std::move(inputs), {},
        activation({rows, columns}, split, split == TensorSplit::split ? std::optional(1) : std::nullopt));
}

TensorId GraphBuilder::columns(const std::string& name, TensorId x, std::int64_t count) {
    return append(OperatorKind::slice, name, {x}, {}, activation({shape(x)[0], count}));
}

TensorId GraphBuilder::unary(OperatorKind kind, const std::string& name, TensorId x,
                             bool is_tanh_approximation) {
    Tensor output = like(x);
    if (kind == OperatorKind::gated_silu || kind == OperatorKind::gated_gelu) output.shape.back() /= 2;
    Attributes attributes;
    attributes.is_tanh_approximation = is_tanh_approximation;
    return append(kind, name, {x}, {}, std::move(output), attributes);
}

TensorId GraphBuilder::dropout(const std::string& name, TensorId x, double probability) {
    if (probability == 0) return x;
    Attributes attributes;
    attributes.probability = probability;
    return append(OperatorKind::dropout, name, {x}, {}, like(x), attributes);
}

TensorId GraphBuilder::add(const std::string& name, TensorId a, TensorId b) {
    return append(OperatorKind::add, name, {a, b}, {}, like(a));
}

TensorId GraphBuilder::conv2d(const std::string& name, TensorId x, std::int64_t channels, std::int64_t kernel,
                              std::int64_t stride, std::int64_t padding, bool has_bias) {
    Attributes attributes;
    attributes.kernel_y = attributes.kernel_x = kernel;
    attributes.stride = stride;
    attributes.padding = padding;
    attributes.has_bias = has_bias;
    const std::vector<std::int64_t> in = shape(x);
    // He initialisation over the fan-out, as torchvision does for ResNet (arXiv 1502.01852).
    const double deviation = std::sqrt(2.0 / (channels * kernel * kernel));
    std::vector<ParameterId> parameters{
        parameter(name + ".weight", weight({channels, in[0], kernel, kernel}, deviation))};
    if (has_bias) parameters.push_back(parameter(name + ".bias", constant(channels, Initialization::zeros)));
    return append(
        OperatorKind::conv2d, name, {x}, std::move(parameters),
        activation({channels, pooled(in[1], attributes, kernel), pooled(in[2], attributes, kernel)}),
        attributes);
}

TensorId GraphBuilder::pool(OperatorKind kind, const std::string& name, TensorId x, std::int64_t kernel,
                            std::int64_t stride, std::int64_t padding) {
    Attributes attributes;
    attributes.kernel_y = attributes.kernel_x = kernel;
    attributes.stride = stride;
    attributes.padding = padding;
    const std::vector<std::int64_t> in = shape(x);
    return append(kind, name, {x}, {},
                  activation({in[0], pooled(in[1], attributes, kernel), pooled(in[2], attributes, kernel)}),
                  attributes);
}

TensorId GraphBuilder::reshape(OperatorKind kind, const std::string& name, TensorId x) {
    const std::vector<std::int64_t> in = shape(x);
    const std::int64_t rest = element_count(in) / in[0];
    std::vector<std::int64_t> out;
    switch (kind) {
        case OperatorKind::flatten: out = {1, element_count(in)}; break;
        case OperatorKind::transpose: out = {rest, in[0]}; break;
        case OperatorKind::merge_patches: out = {in[0] / 4, in[1] * 4}; break;
        case OperatorKind::average_tokens:
        case OperatorKind::select_first_token: out = {1, in[1]}; break;
        case OperatorKind::input:
        case OperatorKind::embedding:
        case OperatorKind::position_embedding:
        case OperatorKind::prepend_token:
        case OperatorKind::linear:
        case OperatorKind::layer_norm:
        case OperatorKind::rms_norm:
        case OperatorKind::batch_norm:
        case OperatorKind::attention:
        case OperatorKind::gelu:
        case OperatorKind::relu:
        case OperatorKind::silu:
        case OperatorKind::tanh:
        case OperatorKind::gated_silu:
        case OperatorKind::gated_gelu:
        case OperatorKind::dropout:
        case OperatorKind::add:
        case OperatorKind::conv2d:
        case OperatorKind::max_pool:
        case OperatorKind::average_pool:
        case OperatorKind::select_positions:
        case OperatorKind::router:
        case OperatorKind::dispatch:
        case OperatorKind::experts:
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
        case OperatorKind::reshape:
        case OperatorKind::permute:
        case OperatorKind::slice:
        case OperatorKind::gather:
        case OperatorKind::pooling:
        case OperatorKind::convolution:
        case OperatorKind::unknown:
            throw core::InternalError("broken promise: reshape takes only kinds that move elements");
    }
    return append(kind, name, {x}, {}, activation(std::move(out)));
}

TensorId GraphBuilder::select_positions(const std::string& name, TensorId x, TensorId positions) {
    return append(OperatorKind::select_positions, name, {x, positions}, {},
                  activation({shape(positions)[0], shape(x)[1]}));
}

TensorId GraphBuilder::mixture_of_experts(const std::string& name, TensorId x, const Attributes& attributes,
                                          double deviation, double output_deviation) {
    const std::int64_t hidden = shape(x)[1];
    Parameter router = weight({attributes.experts, hidden}, deviation);
    router.has_partial_gradient = true;
    Parameter first = weight(
        {attributes.experts, attributes.expert_hidden * (attributes.experts_are_gated ? 2 : 1), hidden},
        deviation);
    first.split_dimension = 1;
    first.split_blocks = attributes.experts_are_gated ? 2 : 1;
    first.is_expert = true;
    Parameter second = weight({attributes.experts, hidden, attributes.expert_hidden}, output_deviation);
    second.split_dimension = 2;
    second.is_expert = true;
    open(name);
    const ParameterId router_id = parameter("router.weight", std::move(router));
    const ParameterId first_id = parameter("experts.first.weight", std::move(first));
    const ParameterId second_id = parameter("experts.second.weight", std::move(second));
    std::vector<ParameterId> of_router{router_id}, of_experts{first_id, second_id};
    if (attributes.router_has_bias) {
        Parameter bias = constant(attributes.experts, Initialization::zeros);
        bias.has_partial_gradient = true;
        of_router.push_back(parameter("router.bias", std::move(bias)));
    }
    if (attributes.experts_have_bias) {
        Parameter bias = constant(attributes.experts, Initialization::zeros);
        bias.is_expert = true;
        bias.shape = {attributes.experts, hidden};
        Parameter inner = bias;
        inner.shape[1] = attributes.expert_hidden * (attributes.experts_are_gated ? 2 : 1);
        inner.split_dimension = 1;
        inner.split_blocks = attributes.experts_are_gated ? 2 : 1;
        of_experts.push_back(parameter("experts.first.bias", std::move(inner)));
        of_experts.push_back(parameter("experts.second.bias", std::move(bias)));
    }
    const TensorSplit split = in_region_ ? TensorSplit::partial : TensorSplit::whole;
    const std::int64_t tokens = shape(x)[0];
    const TensorId probabilities = append(OperatorKind::router, "router", {x}, std::move(of_router),
                                          activation({tokens, attributes.experts}), attributes);
    const TensorId routed_tokens =
        append(OperatorKind::dispatch, "dispatch", {x, probabilities}, {},
               activation({tokens * attributes.experts_per_token, hidden}), attributes);
    const TensorId worked =
        append(OperatorKind::experts, "experts", {routed_tokens, probabilities}, std::move(of_experts),
               activation(shape(routed_tokens), split), attributes);
    const TensorId result = append(OperatorKind::combine, "combine", {worked, probabilities}, {},
                                   activation({tokens, hidden}, split), attributes);
    close();
    return result;
}

void GraphBuilder::begin_region() { in_region_ = true; }

void GraphBuilder::end_region() { in_region_ = false; }

TensorId GraphBuilder::enter(const std::string& name, TensorId x) {
    in_region_ = true;
    return append(OperatorKind::parallel_enter, name, {x}, {}, like(x));
}

TensorId GraphBuilder::exit(const std::string& name, TensorId x) {
    in_region_ = false;
    return append(OperatorKind::parallel_exit, name, {x}, {}, activation(shape(x)));
}

TensorId GraphBuilder::general(OperatorKind kind, const std::string& name, std::vector<TensorId> inputs,
                               std::vector<ParameterId> parameters, std::vector<std::int64_t> shape,
                               const Attributes& attributes, bool has_gradient, core::DataType type) {
    Tensor output = activation(std::move(shape));
    output.is_activation = has_gradient;
    output.type = type;
    return append(kind, name, std::move(inputs), std::move(parameters), std::move(output), attributes);
}

TensorId GraphBuilder::loss(TensorId logits, TensorId labels) {
    Tensor statistics = activation({shape(logits)[0], 3}, graph_.tensor(logits).split == TensorSplit::split
                                                              ? TensorSplit::partial
                                                              : TensorSplit::whole);
    statistics.is_activation = false;
    const TensorId stats =
        append(OperatorKind::loss_statistics, "statistics", {logits, labels}, {}, std::move(statistics));
    Tensor mean = activation({1});
    mean.is_activation = false;
    return append(OperatorKind::cross_entropy, "cross_entropy", {logits, stats, labels}, {}, std::move(mean));
}

ModelGraph GraphBuilder::finish() {
    const auto end = core::count_of(graph_.operators);
    while (open_modules_.size() > 1) close();
    graph_.modules[0].operators = {0, end};
    if (!graph_.units.empty()) graph_.units.back().operators.end = end;
    check(graph_);
    return std::move(graph_);
}

}  // namespace model
