// Maps each ONNX node to one of our operators, with its tensors and parameters.
#include "core/diagnostics.h"
#include "core/index/integers.h"
#include "model/reader/onnx/onnx_mapper.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include <fmt/core.h>

#include "model/reader/onnx/onnx_units.h"

namespace model {

namespace {

bool is_any_of(const std::string& text, std::initializer_list<const char*> words) {
    return std::any_of(words.begin(), words.end(), [&](const char* word) { return text == word; });
}

// As "layers.0.norm.bias"; TorchScript names what nodes make "/layers.0/Add_output_0", "onnx::Add_7" or "7".
bool is_name_of_module(const std::string& name) {
    return !name.empty() && std::isalpha(static_cast<unsigned char>(name[0])) && !name.starts_with("onnx::");
}

}  // namespace

std::optional<ModelGraph> OnnxMapper::run() {
    builder.begin_unit("graph");
    for (const std::int32_t v : core::indices(graph.values))
        if (graph.values[v].is_initializer && graph.values[v].type == OnnxType::floating &&
            !stored.is_constant[v] && (elements(v) > 1 || is_weight_of_one(v)))
            weights_[v] = {v, false, true};
    for (const int v : stored.joined) weights_[v] = {v, false, true};
    if (!add_inputs()) return std::nullopt;
    choose_loss();
    for (const int n : stored.joining) is_left_out_[n] = true;
    for (std::size_t n = 0; n < graph.nodes.size() && !has_failed_; ++n)
        if (!patterns.is_absorbed[n] && !is_left_out_[n]) map(static_cast<int>(n));
    if (has_failed_ || !add_loss()) return std::nullopt;
    describe_model();
    ModelGraph result = builder.finish();
    divide_into_units(result);
    check(result);
    return result;
}

// A bias of one output: any other single number is a factor or an epsilon.
bool OnnxMapper::is_weight_of_one(int value) const {
    const OnnxValue& number = graph.value(value);
    return !number.shape.empty() && elements(value) == 1 && !number.consumers.empty() &&
           std::all_of(number.consumers.begin(), number.consumers.end(), [&](int n) {
               return is_any_of(node(n).type, {"Conv", "ConvTranspose", "Gemm"}) && node(n).domain.empty();
           });
}

bool OnnxMapper::fail(std::string message, std::string hint) {
    if (!has_failed_) diagnostics.error(location, key, std::move(message), std::move(hint));
    has_failed_ = true;
    return false;
}

std::optional<OnnxMapper::Shape> OnnxMapper::sample_shape(int value) {
    Shape shape = graph.value(value).shape;
    if (std::find(shape.begin(), shape.end(), 0) != shape.end()) {
        fail(fmt::format("tensor {} has no elements", core::in_quotes(graph.value(value).name, 100)));
        return std::nullopt;
    }
    if (shape.empty()) return Shape{1};
    const std::int64_t batch = graph.batch;
    std::size_t axis = 0;
    if (batch > 1) {
        // The batch alone, before a batch folded into another dimension (tokens of all samples).
        while (axis < shape.size() && shape[axis] != batch) ++axis;
        if (axis == shape.size() || (axis > 0 && shape[0] % batch == 0)) {
            axis = 0;
            while (axis < shape.size() && shape[axis] % batch != 0) ++axis;
        }
        if (axis == shape.size()) return shape;  // the same for all samples, as masks are
        shape[axis] /= batch;
    }
    if (shape.size() > 1 && shape[axis] == 1) shape.erase(shape.begin() + axis);
    return shape;
}

std::string OnnxMapper::unique_name(const OnnxNode& from) {
    std::string name;
    for (char c : from.name) {
        if (static_cast<unsigned char>(c) < 32 || c == 127) c = '_';
        if (c == '/' && name.empty()) continue;
        name += c == '/' ? '.' : c;
    }
    if (name.size() > 200) name.resize(200);
    if (name.empty()) name = from.type;
    const int count = ++names_[name];
    return count == 1 ? name : fmt::format("{}#{}", name, count);
}

ParameterId OnnxMapper::parameter(int value, const Shape& shape) {
    const int source = weight(value).source;
    ParameterId& id = parameters_[source];
    if (!id.is_valid()) {
        Parameter description;
        const auto table = stored.tables.find(source);
        description.shape = table != stored.tables.end() ? table->second : shape.empty() ? Shape{1} : shape;
        description.decays = graph.value(source).shape.size() > 1;
        description.initialization = description.decays ? Initialization::normal : Initialization::zeros;
        std::string name = graph.value(source).name;
        for (char& c : name)
            if (static_cast<unsigned char>(c) < 32 || c == 127) c = '_';
        id = builder.parameter(name.substr(0, 200), std::move(description));
    }
    return id;
}

bool OnnxMapper::can_be(int value, const Shape& shape) const {
    const ParameterId id = parameters_[weight(value).source];
    return !id.is_valid() || builder_graph().parameter(id).shape == shape;
}

TensorId OnnxMapper::emit(OperatorKind kind, const OnnxNode& from, int value, std::vector<TensorId> inputs,
                          std::vector<ParameterId> parameters, const Attributes& attributes,
                          bool can_have_gradient, std::optional<Shape> given) {
    const std::optional<Shape> shape = given ? given : sample_shape(value);
    if (!shape) return {};
    bool has_grad = !parameters.empty();
    for (TensorId input : inputs) has_grad = has_grad || has_gradient(builder_graph(), input);
    const OnnxType type = graph.value(value).type;
    has_grad = has_grad && can_have_gradient && type == OnnxType::floating;
    // Booleans take one byte, and so does fp8.
    const core::DataType stored = type == OnnxType::integer   ? core::DataType::int64
                                  : type == OnnxType::boolean ? core::DataType::fp8
                                                              : core::DataType::fp32;
    const TensorId result = builder.general(kind, unique_name(from), std::move(inputs), std::move(parameters),
                                            *shape, attributes, has_grad, stored);
    tensors_[value] = result;
    return result;
}

void OnnxMapper::operands(const OnnxNode& from, std::vector<TensorId>& inputs,
                          std::vector<ParameterId>& parameters) {
    for (int input : from.inputs) {
        if (is_activation(input)) inputs.push_back(tensor(input));
        else if (is_weight(input) && weight(input).is_strong) parameters.push_back(parameter(input));
    }
}

void OnnxMapper::map(int n) {
    const OnnxNode& from = node(n);
    if (n == loss_node_) return;
    if (const auto found = patterns.at_last.find(n); found != patterns.at_last.end()) {
        if (map_pattern(from, found->second)) return;
    }
    if (from.output() < 0) return;
    const bool has_activation =
        std::any_of(from.inputs.begin(), from.inputs.end(), [&](int v) { return is_activation(v); });
    const bool has_weight = std::any_of(from.inputs.begin(), from.inputs.end(),
                                        [&](int v) { return is_weight(v) && weight(v).is_strong; });
    const bool is_standard = from.domain.empty();
    if (is_standard && is_any_of(from.type, {"Shape", "Size", "Range", "EyeLike"})) {
        if (!has_activation || graph.value(from.output()).data) return;  // a constant
    }
    if (is_standard && from.type == "Constant") {
        if (graph.value(from.output()).type == OnnxType::floating && elements(from.output()) > 1)
            weights_[from.output()] = {from.output(), false, false};
        return;
    }
    if (is_standard && from.type == "ConstantOfShape") {
        // Files without their weights make them so; where parameters are listed these are zeros to write
        // into.
        const bool is_given =
            from.input(0) >= 0 && graph.value(from.inputs[0]).is_initializer && !graph.lists_parameters;
        if (graph.value(from.output()).type == OnnxType::floating && elements(from.output()) > 1)
            weights_[from.output()] = {from.output(), false, is_given};
        return;
    }
    if (!has_activation && is_standard && rename_weight(from)) return;
    const bool is_part_of_weight = has_weight && graph.value(from.output()).type == OnnxType::floating;
    if (is_standard && !is_part_of_weight && graph.value(from.output()).data) return;  // folded
    if (!has_activation && !has_weight) return;                                        // a constant
    if (!is_standard || !has_mapping(from)) return map_unknown(from);
    map_operator(from);
}

bool OnnxMapper::rename_weight(const OnnxNode& from) {
    const int input = from.input(0);
    if (!is_weight(input) || !is_any_of(from.type, {"Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze",
                                                    "Flatten", "Transpose", "Dropout"}))
        return false;
    if (graph.value(from.output()).type != OnnxType::floating) return false;
    if (from.type == "Identity" && graph.value(input).is_initializer &&
        graph.value(input).shape.size() == 1 && is_name_of_module(graph.value(from.output()).name)) {
        weights_[from.output()] = {from.output(), false, true};
        ++repeated_weights_;
        return true;
    }
    Weight renamed = weight(input);
    if (from.type == "Transpose") {
        if (graph.value(input).shape.size() != 2) return false;
        const std::vector<std::int64_t> order = from.integers("perm");
        if (order.empty() || order == std::vector<std::int64_t>{1, 0})
            renamed.is_swapped = !renamed.is_swapped;
    }
    weights_[from.output()] = renamed;
    return true;
}

void OnnxMapper::map_unknown(const OnnxNode& from) {
    std::vector<TensorId> inputs;
    std::vector<ParameterId> parameters;
    operands(from, inputs, parameters);
    for (int output : from.outputs)
        if (output >= 0 && graph.value(output).has_shape)
            emit(OperatorKind::unknown, from, output, inputs, parameters);
    if (++unknowns_ <= 5)
        builder.graph().assumptions.push_back(
            describe(from) +
            " is not understood: priced by the bytes it reads and writes, without arithmetic");
}

bool OnnxMapper::map_pattern(const OnnxNode& last, const OnnxPattern& pattern) {
    const OnnxNode& named = node(pattern.first);
    if (!is_activation(pattern.input)) return false;
    const TensorId x = tensor(pattern.input);
    Attributes attributes;
    switch (pattern.kind) {
        case OnnxPattern::Kind::gelu:
        case OnnxPattern::Kind::gelu_tanh:
            attributes.is_tanh_approximation = pattern.kind == OnnxPattern::Kind::gelu_tanh;
            emit(OperatorKind::gelu, named, last.output(), {x}, {}, attributes, true, builder.shape(x));
            return true;
        case OnnxPattern::Kind::silu:
            emit(OperatorKind::silu, named, last.output(), {x}, {}, {}, true, builder.shape(x));
            return true;
        case OnnxPattern::Kind::layer_norm:
        case OnnxPattern::Kind::rms_norm:
            layer_norm(named, last.output(), x, pattern.parameters, pattern.epsilon,
                       pattern.kind == OnnxPattern::Kind::rms_norm);
            return true;
        case OnnxPattern::Kind::scaled_batch_norm:
            has_scaled_norms_ = true;
            batch_norm(named, last.output(), x, pattern.parameters);
            return true;
        case OnnxPattern::Kind::biased_product:
            product(named, last.output(), pattern.parameters[0]);
            return true;
    }
    return false;
}

std::vector<ParameterId> OnnxMapper::trained(const std::vector<int>& values, const Shape& shape) {
    std::vector<ParameterId> parameters;
    for (int value : values)
        if (is_weight(value) && can_be(value, shape) && elements(value) == element_count(shape))
            parameters.push_back(parameter(value, shape));
    return parameters;
}

void OnnxMapper::layer_norm(const OnnxNode& from, int output, TensorId x, const std::vector<int>& values,
                            double epsilon, bool is_rms) {
    std::vector<ParameterId> parameters = trained(values, {builder.shape(x).back()});
    Attributes attributes;
    attributes.epsilon = std::clamp(epsilon, 0.0, 1.0);
    attributes.has_bias = parameters.size() == 2;
    const bool fits =
        !parameters.empty() && parameters.size() == values.size() && (!is_rms || parameters.size() == 1);
    const OperatorKind kind = !fits    ? OperatorKind::normalization
                              : is_rms ? OperatorKind::rms_norm
                                       : OperatorKind::layer_norm;
    emit(kind, from, output, {x}, std::move(parameters), attributes, true, builder.shape(x));
}

void OnnxMapper::batch_norm(const OnnxNode& from, int output, TensorId x, const std::vector<int>& values) {
    const std::int64_t channels = graph.value(from.input(0)).shape[1];  // of regions perhaps
    std::vector<ParameterId> parameters = trained(values, {channels});
    Attributes attributes;
    attributes.epsilon = std::clamp(from.real("epsilon", 1e-5), 0.0, 1.0);
    attributes.has_bias = true;
    const OperatorKind kind = parameters.size() == 2 && builder.shape(x)[0] == channels
                                  ? OperatorKind::batch_norm
                                  : OperatorKind::normalization;
    emit(kind, from, output, {x}, std::move(parameters), attributes, true, builder.shape(x));
}

void OnnxMapper::map_operator(const OnnxNode& from) {
    const std::string& type = from.type;
    const int input = from.input(0), output = from.output();
    if (type == "MatMul" || type == "Gemm") return product(from, output, type == "Gemm" ? from.input(2) : -1);
    if (type == "Conv" || type == "ConvTranspose") return convolution(from);
    if (type == "Einsum") return einsum(from);
    if (type == "Gather" || type == "GatherElements" || type == "GatherND") return gather(from);
    if (is_any_of(type, {"LSTM", "GRU", "RNN"})) {
        if (!recurrence(from))
            fail(describe(from) +
                     " is read with weights that are initialisers [directions, gates x hidden, "
                     "width] and one sequence of all its steps a sample",
                 "export with batch_first = True, a batch of 1 and folded constants");
        return;
    }
    if (is_any_of(type, {"TopK", "NonZero", "NonMaxSuppression", "Compress", "RoiAlign"}))
        return selection(from);
    if (type == "Concat") {
        std::vector<TensorId> inputs;
        std::vector<ParameterId> parameters;
        operands(from, inputs, parameters);
        emit(OperatorKind::concat, from, output, inputs, parameters);
        return;
    }
    if (const auto found = onnx_elementwise_operators().find(type);
        found != onnx_elementwise_operators().end())
        return elementwise(from, found->second);
    if (!is_activation(input)) {
        // A part or a sum of a weight.
        if (is_weight(input))
            emit(type == "Slice" || type == "Split" ? OperatorKind::gather : OperatorKind::elementwise, from,
                 output, {}, {parameter(input)});
        else
            fail(describe(from) + " does not work on its first input, but on a constant",
                 "fold constants when exporting");
        return;
    }
    const TensorId x = tensor(input);
    if (is_any_of(type, {"Identity"})) return alias(output, x);
    if (is_any_of(type, {"Reshape", "Flatten", "Squeeze", "Unsqueeze"})) return reshape(from, x);
    if (type == "Transpose") return transpose(from, x);
    if (is_any_of(type, {"DepthToSpace", "SpaceToDepth"}))
        return void(emit(OperatorKind::permute, from, output, {x}, {}));
    if (type == "Slice") {
        if (sample_shape(output) == std::optional<Shape>(builder.shape(x))) return alias(output, x);
        emit(OperatorKind::slice, from, output, {x}, {});
        return;
    }
    if (type == "Split") {
        for (int part : from.outputs)
            if (part >= 0 && (!graph.value(part).consumers.empty() || graph.value(part).is_output))
                emit(OperatorKind::slice, from, part, {x}, {});
        return;
    }
    if (type == "Relu" || type == "Tanh" || type == "Gelu") {
        Attributes attributes;
        const auto approximate = from.attributes.find("approximate");
        attributes.is_tanh_approximation =
            type == "Gelu" && approximate != from.attributes.end() && approximate->second.text == "tanh";
        emit(type == "Relu"   ? OperatorKind::relu
             : type == "Tanh" ? OperatorKind::tanh
                              : OperatorKind::gelu,
             from, output, {x}, {}, attributes, true, builder.shape(x));
        return;
    }
    if (type == "Softmax" || type == "LogSoftmax")
        return void(emit(OperatorKind::softmax, from, output, {x}, {}, {}, true, builder.shape(x)));
    if (type == "Dropout") {
        Attributes attributes;
        attributes.probability = from.real("ratio", 0.5);
        if (from.input(1) >= 0 && graph.value(from.inputs[1]).data &&
            graph.value(from.inputs[1]).data->size() == 1)
            attributes.probability = (*graph.value(from.inputs[1]).data)[0];
        if (!(attributes.probability > 0 && attributes.probability < 1)) return alias(output, x);
        emit(OperatorKind::dropout, from, output, {x}, {}, attributes, true, builder.shape(x));
        return;
    }
    if (type == "BatchNormalization") {
        if (graph.value(input).shape.size() < 2)
            return void(fail(describe(from) + " needs a batch and channels"));
        return batch_norm(from, output, x, {from.input(1), from.input(2)});
    }
    if (type == "RMSNormalization")
        return layer_norm(from, output, x, {from.input(1)}, from.real("epsilon", 1e-5), true);
    if (type == "LayerNormalization") {
        std::vector<int> values{from.input(1)};
        if (from.input(2) >= 0) values.push_back(from.input(2));
        return layer_norm(from, output, x, values, from.real("epsilon", 1e-5), false);
    }
    if (is_any_of(type, {"InstanceNormalization", "GroupNormalization", "LpNormalization",
                         "MeanVarianceNormalization"})) {
        std::vector<TensorId> inputs;
        std::vector<ParameterId> parameters;
        operands(from, inputs, parameters);
        parameters.resize(std::min<std::size_t>(parameters.size(), 2));
        emit(OperatorKind::normalization, from, output, {x}, parameters, {}, true, builder.shape(x));
        return;
    }
    if (is_any_of(type, {"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"}))
        return pool(from, x);
    if (type.starts_with("Reduce")) {
        Attributes attributes;
        attributes.is_maximum = type == "ReduceMax" || type == "ReduceMin";
        emit(OperatorKind::reduce, from, output, {x}, {}, attributes);
        return;
    }
    // Shapes of unusual rank and the like: a constant that could not be folded.
    emit(OperatorKind::elementwise, from, output, {x}, {}, {}, false);
}

std::optional<ModelGraph> model_of_onnx(const OnnxGraph& graph, const std::string& path,
                                        core::Diagnostics& diagnostics, const std::string& key) {
    return OnnxMapper(graph, path, diagnostics, key).run();
}

std::optional<ModelGraph> read_onnx(const std::string& path, const LoadOptions& options,
                                    core::Diagnostics& diagnostics, const core::SourceLocation& referrer,
                                    const std::string& key) {
    std::optional<OnnxGraph> graph = read_onnx_graph(path, options, diagnostics, referrer, key);
    if (!graph) return std::nullopt;
    graph->name = std::filesystem::path(path).stem().string();
    return model_of_onnx(*graph, path, diagnostics, key);
}

}  // namespace model
