// ONNX operators as ours. Values of the graph are of three kinds: activations (they follow from the inputs; they have a tensor), weights (floating initialisers
// and what only renames or transposes them) and constants (everything else that follows from neither).
#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include <fmt/core.h>

#include "model/builder/graph_builder.h"
#include "model/rank_share.h"
#include "model/reader/onnx.h"
#include "model/reader/onnx_patterns.h"
#include "model/reader/onnx_units.h"

namespace model {

namespace {

using Shape = std::vector<std::int64_t>;

// What backward of an elementwise operator reads: nothing, inputs, the output, both; inputs if two of them have gradients; or it has no gradient at all.
enum class Keeps { nothing, inputs, output, both, factors, no_gradient };

const std::map<std::string, Keeps>& elementwise_operators() {
    static const std::map<std::string, Keeps> operators{
        {"Abs", Keeps::inputs},
        {"Add", Keeps::nothing},
        {"And", Keeps::no_gradient},
        {"ArgMax", Keeps::no_gradient},
        {"ArgMin", Keeps::no_gradient},
        {"Cast", Keeps::nothing},
        {"Ceil", Keeps::no_gradient},
        {"Celu", Keeps::inputs},
        {"Clip", Keeps::inputs},
        {"Cos", Keeps::inputs},
        {"CumSum", Keeps::nothing},
        {"Div", Keeps::factors},
        {"Elu", Keeps::output},
        {"Equal", Keeps::no_gradient},
        {"Erf", Keeps::inputs},
        {"Exp", Keeps::output},
        {"Expand", Keeps::nothing},
        {"Floor", Keeps::no_gradient},
        {"Greater", Keeps::no_gradient},
        {"GreaterOrEqual", Keeps::no_gradient},
        {"HardSigmoid", Keeps::inputs},
        {"HardSwish", Keeps::inputs},
        {"IsInf", Keeps::no_gradient},
        {"IsNaN", Keeps::no_gradient},
        {"LRN", Keeps::both},
        {"LeakyRelu", Keeps::inputs},
        {"Less", Keeps::no_gradient},
        {"LessOrEqual", Keeps::no_gradient},
        {"Log", Keeps::inputs},
        {"Max", Keeps::inputs},
        {"Mean", Keeps::nothing},
        {"Min", Keeps::inputs},
        {"Mod", Keeps::no_gradient},
        {"Mul", Keeps::factors},
        {"Neg", Keeps::nothing},
        {"Not", Keeps::no_gradient},
        {"OneHot", Keeps::no_gradient},
        {"Or", Keeps::no_gradient},
        {"PRelu", Keeps::inputs},
        {"Pad", Keeps::nothing},
        {"Pow", Keeps::inputs},
        {"Reciprocal", Keeps::output},
        {"Resize", Keeps::nothing},
        {"Round", Keeps::no_gradient},
        {"Selu", Keeps::output},
        {"Sigmoid", Keeps::output},
        {"Sign", Keeps::no_gradient},
        {"Sin", Keeps::inputs},
        {"Softplus", Keeps::inputs},
        {"Softsign", Keeps::inputs},
        {"Sqrt", Keeps::output},
        {"Sub", Keeps::nothing},
        {"Sum", Keeps::nothing},
        {"ThresholdedRelu", Keeps::inputs},
        {"Tile", Keeps::nothing},
        {"Trilu", Keeps::nothing},
        {"Upsample", Keeps::nothing},
        {"Where", Keeps::factors},
        {"Xor", Keeps::no_gradient},
    };
    return operators;
}

const std::set<std::string>& other_operators() {
    static const std::set<std::string> operators{"AveragePool",
                                                 "BatchNormalization",
                                                 "Concat",
                                                 "Constant",
                                                 "ConstantOfShape",
                                                 "Conv",
                                                 "ConvTranspose",
                                                 "DepthToSpace",
                                                 "Dropout",
                                                 "EyeLike",
                                                 "Flatten",
                                                 "Gather",
                                                 "GatherElements",
                                                 "GatherND",
                                                 "Gelu",
                                                 "Gemm",
                                                 "GlobalAveragePool",
                                                 "GlobalMaxPool",
                                                 "GroupNormalization",
                                                 "Identity",
                                                 "InstanceNormalization",
                                                 "LayerNormalization",
                                                 "LogSoftmax",
                                                 "LpNormalization",
                                                 "MatMul",
                                                 "MaxPool",
                                                 "MeanVarianceNormalization",
                                                 "NegativeLogLikelihoodLoss",
                                                 "Range",
                                                 "ReduceL1",
                                                 "ReduceL2",
                                                 "ReduceLogSumExp",
                                                 "ReduceMax",
                                                 "ReduceMean",
                                                 "ReduceMin",
                                                 "ReduceProd",
                                                 "ReduceSum",
                                                 "ReduceSumSquare",
                                                 "Relu",
                                                 "Reshape",
                                                 "Shape",
                                                 "Size",
                                                 "Slice",
                                                 "Softmax",
                                                 "SoftmaxCrossEntropyLoss",
                                                 "SpaceToDepth",
                                                 "Split",
                                                 "Squeeze",
                                                 "Tanh",
                                                 "Transpose",
                                                 "Unsqueeze"};
    return operators;
}

bool is_any_of(const std::string& text, std::initializer_list<const char*> words) {
    return std::any_of(words.begin(), words.end(), [&](const char* word) { return text == word; });
}

class Mapper {
public:
    Mapper(const OnnxGraph& g, const std::string& path, const LoadOptions& o, core::Diagnostics& d, const std::string& k)
        : graph(g),
          patterns(find_patterns(g)),
          options(o),
          diagnostics(d),
          key(k),
          place{path, 0, 0},
          builder(g.name, "onnx"),
          tensors_(g.values.size()),
          weights_(g.values.size()),
          parameters_(g.values.size()) {}

    std::optional<ModelGraph> run() {
        builder.begin_unit("graph");
        for (std::size_t v = 0; v < graph.values.size(); ++v)
            if (graph.values[v].is_initializer && graph.values[v].type == OnnxType::floating && elements(static_cast<int>(v)) > 1)
                weights_[v] = {static_cast<int>(v), false, true};
        if (!add_inputs()) return std::nullopt;
        choose_loss();
        for (std::size_t n = 0; n < graph.nodes.size() && !has_failed_; ++n)
            if (!patterns.is_absorbed[n] && !is_left_out_[n]) map(static_cast<int>(n));
        if (has_failed_ || !add_loss()) return std::nullopt;
        describe_model();
        ModelGraph result = builder.finish();
        divide_into_units(result);
        check(result);
        return result;
    }

private:
    // A weight under the name of this value: which initialiser, whether its two dimensions are swapped, whether it is trained wherever it is read (a floating
    // Constant is only where it is the weight of a product).
    struct Weight {
        int source = -1;
        bool is_swapped = false, is_strong = false;
    };

    bool fail(std::string message, std::string hint = {}) {
        if (!has_failed_) diagnostics.error(place, key, std::move(message), std::move(hint));
        has_failed_ = true;
        return false;
    }
    const OnnxNode& node(int n) const { return graph.nodes[static_cast<std::size_t>(n)]; }
    std::int64_t elements(int value) const { return element_count(graph.value(value).shape); }
    bool is_activation(int value) const { return value >= 0 && tensors_[static_cast<std::size_t>(value)].is_valid(); }
    TensorId tensor(int value) const { return tensors_[static_cast<std::size_t>(value)]; }
    const Weight& weight(int value) const { return weights_[static_cast<std::size_t>(value)]; }
    bool is_weight(int value) const { return value >= 0 && !is_activation(value) && weight(value).source >= 0; }
    bool has_gradient_at(int value) const { return is_activation(value) && has_gradient(builder_graph(), tensor(value)); }
    const ModelGraph& builder_graph() const { return builder.graph(); }

    // The shape of one sample: without the batch, wherever exporters put it.
    std::optional<Shape> sample_shape(int value) {
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
        if (shape.size() > 1 && shape[axis] == 1) shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(axis));
        return shape;
    }

    std::string unique_name(const OnnxNode& from) {
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

    // The parameter behind a weight, in this shape; another shape than at its first use gives nothing (the same elements are then read in another way).
    ParameterId parameter(int value, const Shape& shape) {
        const int source = weight(value).source;
        ParameterId& id = parameters_[static_cast<std::size_t>(source)];
        if (!id.is_valid()) {
            Parameter description;
            description.shape = shape.empty() ? Shape{1} : shape;
            description.decays = graph.value(source).shape.size() > 1;
            description.initialization = description.decays ? Initialization::normal : Initialization::zeros;
            std::string name = graph.value(source).name;
            for (char& c : name)
                if (static_cast<unsigned char>(c) < 32 || c == 127) c = '_';
            id = builder.parameter(name.substr(0, 200), std::move(description));
        }
        return id;
    }
    ParameterId parameter(int value) { return parameter(value, graph.value(weight(value).source).shape); }
    bool can_be(int value, const Shape& shape) const {
        const ParameterId id = parameters_[static_cast<std::size_t>(weight(value).source)];
        return !id.is_valid() || builder_graph().parameter(id).shape == shape;
    }

    // Appends an operator for output `value` of the node. What has no gradient (it follows from inputs alone, or is no number) is data.
    TensorId emit(OperatorKind kind, const OnnxNode& from, int value, std::vector<TensorId> inputs, std::vector<ParameterId> parameters,
                  const Attributes& attributes = {}, bool can_have_gradient = true, std::optional<Shape> given = std::nullopt) {
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
        const TensorId result = builder.general(kind, unique_name(from), std::move(inputs), std::move(parameters), *shape, attributes, has_grad, stored);
        tensors_[static_cast<std::size_t>(value)] = result;
        return result;
    }

    // Activations and weights among the inputs, in order.
    void operands(const OnnxNode& from, std::vector<TensorId>& inputs, std::vector<ParameterId>& parameters) {
        for (int input : from.inputs) {
            if (is_activation(input)) inputs.push_back(tensor(input));
            else if (is_weight(input) && weight(input).is_strong) parameters.push_back(parameter(input));
        }
    }

    bool add_inputs() {
        bool has_image = false;
        for (int input : graph.inputs) {
            const OnnxValue& value = graph.value(input);
            if (value.consumers.empty()) continue;
            const std::optional<Shape> shape = sample_shape(input);
            if (!shape) return false;
            OnnxNode named;
            named.name = value.name;
            named.type = "input";
            tensors_[static_cast<std::size_t>(input)] =
                builder.input(unique_name(named), *shape, value.type == OnnxType::floating ? core::DataType::fp32 : core::DataType::int64);
            has_image = has_image || (value.type == OnnxType::floating && value.shape.size() == 4);
            if (has_image) builder.graph().image_size = std::max(builder.graph().image_size, shape->back());
            if (value.type == OnnxType::integer && value.shape.size() == 2 && builder.graph().tokens_per_sample == 0)
                builder.graph().tokens_per_sample = element_count(*shape);
        }
        if (has_image) builder.graph().tokens_per_sample = 0;
        return true;
    }

    // The output to train on, and the softmax in front of it, which the loss contains.
    void choose_loss() {
        is_left_out_.assign(graph.nodes.size(), false);
        for (std::size_t n = 0; n < graph.nodes.size(); ++n)
            if (is_any_of(graph.nodes[n].type, {"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"}) && graph.nodes[n].domain.empty())
                loss_node_ = static_cast<int>(n);
        if (loss_node_ >= 0) return;
        for (int output : graph.outputs)
            if (graph.value(output).type == OnnxType::floating) logits_ = output;
        for (int output : graph.outputs)
            if (graph.value(output).name == "logits") logits_ = output;
        if (logits_ < 0) return;
        const std::string name = graph.value(logits_).name;
        std::string note = "the graph has no loss: cross-entropy over the last dimension of output " + core::in_quotes(name, 100);
        const int last = graph.value(logits_).producer;
        if (last >= 0 && is_any_of(node(last).type, {"Softmax", "LogSoftmax"}) && graph.value(logits_).consumers.empty() && node(last).input(0) >= 0) {
            is_left_out_[static_cast<std::size_t>(last)] = true;
            logits_ = node(last).input(0);
            note += " (its softmax is part of the loss)";
        }
        builder.graph().assumptions.push_back(note);
        if (graph.outputs.size() > 1)
            builder.graph().assumptions.push_back(fmt::format("the graph has {} outputs; the others are computed and not trained on", graph.outputs.size()));
    }

    bool add_loss() {
        TensorId logits, labels;
        if (loss_node_ >= 0) {
            const OnnxNode& from = node(loss_node_);
            if (!is_activation(from.input(0)) || !is_activation(from.input(1))) return fail(describe(from) + " needs computed scores and labels");
            logits = tensor(from.input(0));
            labels = tensor(from.input(1));
            if (graph.value(from.inputs[0]).shape.size() > 2) {
                // [n, classes, d...]: one row per d.
                const std::int64_t classes = graph.value(from.inputs[0]).shape[1];
                logits = builder.general(OperatorKind::permute, "loss.rows", {logits}, {}, {element_count(builder.shape(logits)) / classes, classes}, {}, true,
                                         core::DataType::fp32);
            }
        } else {
            if (!is_activation(logits_)) return fail("no floating-point output depends on the inputs", "there is nothing to train");
            logits = tensor(logits_);
        }
        if (!has_gradient(builder_graph(), logits)) return fail("the output to train on depends on no weight", "there is nothing to train");
        // Rows of class scores: pixels of extent one behind the classes are none.
        Shape shape = builder.shape(logits);
        while (shape.size() > 1 && shape.back() == 1) shape.pop_back();
        const Shape rows{element_count(shape) / shape.back(), shape.back()};
        if (builder.shape(logits) != rows) logits = builder.general(OperatorKind::reshape, "loss.logits", {logits}, {}, rows, {}, true, core::DataType::fp32);
        if (!labels.is_valid()) labels = builder.input("labels", {rows[0]}, core::DataType::int64);
        else if (builder.shape(labels) != Shape{rows[0]}) {
            if (element_count(builder.shape(labels)) != rows[0]) return fail(describe(node(loss_node_)) + ": there must be one label per row of scores");
            labels = builder.general(OperatorKind::reshape, "loss.labels", {labels}, {}, {rows[0]}, {}, false, core::DataType::int64);
        }
        if (builder.graph().tokens_per_sample > 0) builder.graph().vocabulary = rows[1];
        builder.loss(logits, labels);
        return true;
    }

    void describe_model() {
        ModelGraph& model = builder.graph();
        model.assumptions.insert(model.assumptions.end(), graph.assumptions.begin(), graph.assumptions.end());
        if (has_scaled_norms_)
            model.assumptions.push_back("batch norms followed by a scale layer have no affine part of their own (Caffe): the scale layer's is counted");
        if (!patterns.at_last.empty())
            model.assumptions.push_back(
                fmt::format("{} groups of nodes (norms, GELU, biases taken apart by the exporter) are run as one operator each", patterns.at_last.size()));
    }

    void map(int n) {
        const OnnxNode& from = node(n);
        if (n == loss_node_) return;
        if (const auto found = patterns.at_last.find(n); found != patterns.at_last.end()) {
            if (map_pattern(from, found->second)) return;
        }
        if (from.output() < 0) return;
        const bool has_activation = std::any_of(from.inputs.begin(), from.inputs.end(), [&](int v) { return is_activation(v); });
        const bool has_weight = std::any_of(from.inputs.begin(), from.inputs.end(), [&](int v) { return is_weight(v) && weight(v).is_strong; });
        const bool is_standard = from.domain.empty();
        if (is_standard && is_any_of(from.type, {"Shape", "Size", "Range", "EyeLike"})) {
            if (!has_activation || graph.value(from.output()).data) return;  // a constant
        }
        if (is_standard && from.type == "Constant") {
            if (graph.value(from.output()).type == OnnxType::floating && elements(from.output()) > 1)
                weights_[static_cast<std::size_t>(from.output())] = {from.output(), false, false};
            return;
        }
        if (is_standard && from.type == "ConstantOfShape") {
            const bool is_given = from.input(0) >= 0 && graph.value(from.inputs[0]).is_initializer;
            if (graph.value(from.output()).type == OnnxType::floating && elements(from.output()) > 1)
                weights_[static_cast<std::size_t>(from.output())] = {from.output(), false, is_given};
            return;
        }
        if (!has_activation && is_standard && rename_weight(from)) return;
        if (is_standard && graph.value(from.output()).data) return;  // folded
        if (!has_activation && !has_weight) return;                  // a constant
        if (!is_standard || !has_mapping(from)) return map_unknown(from);
        map_operator(from);
    }

    // Transposed, reshaped, cast: still the same weight.
    bool rename_weight(const OnnxNode& from) {
        const int input = from.input(0);
        if (!is_weight(input) || !is_any_of(from.type, {"Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Dropout"}))
            return false;
        if (graph.value(from.output()).type != OnnxType::floating) return false;
        Weight renamed = weight(input);
        if (from.type == "Transpose") {
            if (graph.value(input).shape.size() != 2) return false;
            const std::vector<std::int64_t> order = from.integers("perm");
            if (order.empty() || order == std::vector<std::int64_t>{1, 0}) renamed.is_swapped = !renamed.is_swapped;
        }
        weights_[static_cast<std::size_t>(from.output())] = renamed;
        return true;
    }

    void map_unknown(const OnnxNode& from) {
        std::vector<TensorId> inputs;
        std::vector<ParameterId> parameters;
        operands(from, inputs, parameters);
        for (int output : from.outputs)
            if (output >= 0 && graph.value(output).has_shape) emit(OperatorKind::unknown, from, output, inputs, parameters);
        if (++unknowns_ <= 5)
            builder.graph().assumptions.push_back(describe(from) + " is not understood: priced by the bytes it reads and writes, without arithmetic");
    }

    bool map_pattern(const OnnxNode& last, const OnnxPattern& pattern) {
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
            case OnnxPattern::Kind::silu: emit(OperatorKind::silu, named, last.output(), {x}, {}, {}, true, builder.shape(x)); return true;
            case OnnxPattern::Kind::layer_norm:
            case OnnxPattern::Kind::rms_norm:
                layer_norm(named, last.output(), x, pattern.parameters, pattern.epsilon, pattern.kind == OnnxPattern::Kind::rms_norm);
                return true;
            case OnnxPattern::Kind::scaled_batch_norm:
                has_scaled_norms_ = true;
                batch_norm(named, last.output(), x, pattern.parameters);
                return true;
            case OnnxPattern::Kind::biased_product: product(named, last.output(), pattern.parameters[0]); return true;
        }
        return false;
    }

    // Weights as parameters; constants that are not trained are left out.
    std::vector<ParameterId> trained(const std::vector<int>& values, const Shape& shape) {
        std::vector<ParameterId> parameters;
        for (int value : values)
            if (is_weight(value) && can_be(value, shape) && elements(value) == element_count(shape)) parameters.push_back(parameter(value, shape));
        return parameters;
    }

    void layer_norm(const OnnxNode& from, int output, TensorId x, const std::vector<int>& values, double epsilon, bool is_rms) {
        std::vector<ParameterId> parameters = trained(values, {builder.shape(x).back()});
        Attributes attributes;
        attributes.epsilon = std::clamp(epsilon, 0.0, 1.0);
        attributes.has_bias = parameters.size() == 2;
        const bool fits = !parameters.empty() && parameters.size() == values.size() && (!is_rms || parameters.size() == 1);
        const OperatorKind kind = !fits ? OperatorKind::normalization : is_rms ? OperatorKind::rms_norm : OperatorKind::layer_norm;
        emit(kind, from, output, {x}, std::move(parameters), attributes, true, builder.shape(x));
    }

    void batch_norm(const OnnxNode& from, int output, TensorId x, const std::vector<int>& values) {
        std::vector<ParameterId> parameters = trained(values, {builder.shape(x)[0]});
        Attributes attributes;
        attributes.epsilon = std::clamp(from.real("epsilon", 1e-5), 0.0, 1.0);
        attributes.has_bias = true;
        const OperatorKind kind = parameters.size() == 2 ? OperatorKind::batch_norm : OperatorKind::normalization;
        emit(kind, from, output, {x}, std::move(parameters), attributes, true, builder.shape(x));
    }

    void map_operator(const OnnxNode& from) {
        const std::string& type = from.type;
        const int input = from.input(0), output = from.output();
        if (type == "MatMul" || type == "Gemm") return product(from, output, type == "Gemm" ? from.input(2) : -1);
        if (type == "Conv" || type == "ConvTranspose") return convolution(from);
        if (type == "Gather" || type == "GatherElements" || type == "GatherND") return gather(from);
        if (type == "Concat") {
            std::vector<TensorId> inputs;
            std::vector<ParameterId> parameters;
            operands(from, inputs, parameters);
            emit(OperatorKind::concat, from, output, inputs, parameters);
            return;
        }
        if (const auto found = elementwise_operators().find(type); found != elementwise_operators().end()) return elementwise(from, found->second);
        if (!is_activation(input)) {
            // A part or a sum of a weight.
            if (is_weight(input))
                emit(type == "Slice" || type == "Split" ? OperatorKind::gather : OperatorKind::elementwise, from, output, {}, {parameter(input)});
            else fail(describe(from) + " does not work on its first input, but on a constant", "fold constants when exporting");
            return;
        }
        const TensorId x = tensor(input);
        if (is_any_of(type, {"Identity"})) return alias(output, x);
        if (is_any_of(type, {"Reshape", "Flatten", "Squeeze", "Unsqueeze"})) return reshape(from, x);
        if (type == "Transpose") return transpose(from, x);
        if (is_any_of(type, {"DepthToSpace", "SpaceToDepth"})) return void(emit(OperatorKind::permute, from, output, {x}, {}));
        if (type == "Slice") {
            if (sample_shape(output) == std::optional<Shape>(builder.shape(x))) return alias(output, x);
            emit(OperatorKind::slice, from, output, {x}, {});
            return;
        }
        if (type == "Split") {
            for (int part : from.outputs)
                if (part >= 0 && (!graph.value(part).consumers.empty() || graph.value(part).is_output)) emit(OperatorKind::slice, from, part, {x}, {});
            return;
        }
        if (type == "Relu" || type == "Tanh" || type == "Gelu") {
            Attributes attributes;
            const auto approximate = from.attributes.find("approximate");
            attributes.is_tanh_approximation = type == "Gelu" && approximate != from.attributes.end() && approximate->second.text == "tanh";
            emit(type == "Relu"   ? OperatorKind::relu
                 : type == "Tanh" ? OperatorKind::tanh
                                  : OperatorKind::gelu,
                 from, output, {x}, {}, attributes, true, builder.shape(x));
            return;
        }
        if (type == "Softmax" || type == "LogSoftmax") return void(emit(OperatorKind::softmax, from, output, {x}, {}, {}, true, builder.shape(x)));
        if (type == "Dropout") {
            Attributes attributes;
            attributes.probability = from.real("ratio", 0.5);
            if (from.input(1) >= 0 && graph.value(from.inputs[1]).data && graph.value(from.inputs[1]).data->size() == 1)
                attributes.probability = (*graph.value(from.inputs[1]).data)[0];
            if (!(attributes.probability > 0 && attributes.probability < 1)) return alias(output, x);
            emit(OperatorKind::dropout, from, output, {x}, {}, attributes, true, builder.shape(x));
            return;
        }
        if (type == "BatchNormalization") {
            if (graph.value(input).shape.size() < 2) return void(fail(describe(from) + " needs a batch and channels"));
            return batch_norm(from, output, x, {from.input(1), from.input(2)});
        }
        if (type == "LayerNormalization") {
            std::vector<int> values{from.input(1)};
            if (from.input(2) >= 0) values.push_back(from.input(2));
            return layer_norm(from, output, x, values, from.real("epsilon", 1e-5), false);
        }
        if (is_any_of(type, {"InstanceNormalization", "GroupNormalization", "LpNormalization", "MeanVarianceNormalization"})) {
            std::vector<TensorId> inputs;
            std::vector<ParameterId> parameters;
            operands(from, inputs, parameters);
            parameters.resize(std::min<std::size_t>(parameters.size(), 2));
            emit(OperatorKind::normalization, from, output, {x}, parameters, {}, true, builder.shape(x));
            return;
        }
        if (is_any_of(type, {"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"})) return pool(from, x);
        if (type.starts_with("Reduce")) {
            Attributes attributes;
            attributes.is_maximum = type == "ReduceMax" || type == "ReduceMin";
            emit(OperatorKind::reduce, from, output, {x}, {}, attributes);
            return;
        }
        // Shapes of unusual rank and the like: a constant that could not be folded.
        emit(OperatorKind::elementwise, from, output, {x}, {}, {}, false);
    }

    void alias(int value, TensorId x) { tensors_[static_cast<std::size_t>(value)] = x; }

    void reshape(const OnnxNode& from, TensorId x) {
        const std::optional<Shape> shape = sample_shape(from.output());
        if (!shape) return;
        if (*shape == builder.shape(x)) return alias(from.output(), x);
        if (element_count(*shape) != element_count(builder.shape(x)))
            return void(fail(describe(from) + " mixes samples of the batch", "export with a batch of 1"));
        emit(OperatorKind::reshape, from, from.output(), {x}, {});
    }

    // Moving dimensions of extent one moves nothing.
    void transpose(const OnnxNode& from, TensorId x) {
        const Shape& shape = graph.value(from.input(0)).shape;
        std::vector<std::int64_t> order = from.integers("perm");
        if (order.empty())
            for (std::size_t i = shape.size(); i-- > 0;) order.push_back(static_cast<std::int64_t>(i));
        std::int64_t last = -1;
        bool moves = false;
        for (std::int64_t d : order) {
            if (d < 0 || d >= static_cast<std::int64_t>(shape.size()) || shape[static_cast<std::size_t>(d)] == 1) continue;
            moves = moves || d < last;
            last = d;
        }
        if (!moves) return reshape(from, x);
        emit(OperatorKind::permute, from, from.output(), {x}, {});
    }

    void elementwise(const OnnxNode& from, Keeps keeps) {
        const int output = from.output();
        std::vector<TensorId> inputs;
        std::vector<ParameterId> parameters;
        operands(from, inputs, parameters);
        const std::optional<Shape> shape = sample_shape(output);
        if (!shape) return;
        const OnnxType type = graph.value(output).type;
        if (inputs.size() == 1 && parameters.empty()) {
            const bool is_same = builder.shape(inputs[0]) == *shape && graph.value(from.inputs[0]).type == type;
            if (is_same && is_any_of(from.type, {"Cast", "Expand", "Tile", "Pad", "Resize", "Upsample", "Sum", "Mean"})) return alias(output, inputs[0]);
        }
        if (from.type == "Add" || from.type == "Sum")
            if (inputs.size() == 2 && parameters.empty() && builder.shape(inputs[0]) == *shape && builder.shape(inputs[1]) == *shape &&
                type == OnnxType::floating)
                return void(emit(OperatorKind::add, from, output, inputs, {}));
        Attributes attributes;
        attributes.saves_inputs = keeps == Keeps::inputs || keeps == Keeps::both || (keeps == Keeps::factors && inputs.size() + parameters.size() > 1);
        attributes.saves_output = keeps == Keeps::output || keeps == Keeps::both;
        emit(OperatorKind::elementwise, from, output, std::move(inputs), std::move(parameters), attributes, keeps != Keeps::no_gradient);
    }

    void gather(const OnnxNode& from) {
        const int data = from.input(0), indices = from.input(1), output = from.output();
        if (is_weight(data) && is_activation(indices) && from.type == "Gather" && from.integer("axis", 0) == 0) {
            const Shape table = graph.value(data).shape;
            const Shape ids = builder.shape(tensor(indices));
            if (table.size() == 2 && ids.size() == 1 && can_be(data, table) && sample_shape(output) == std::optional<Shape>(Shape{ids[0], table[1]}))
                return void(emit(OperatorKind::embedding, from, output, {tensor(indices)}, {parameter(data, table)}));
        }
        std::vector<TensorId> inputs;
        std::vector<ParameterId> parameters;
        if (is_activation(data)) inputs.push_back(tensor(data));
        else if (is_weight(data)) parameters.push_back(parameter(data));
        if (is_activation(indices)) inputs.push_back(tensor(indices));
        emit(OperatorKind::gather, from, output, inputs, parameters);
    }

    // Columns and rows as the node reads them; one-dimensional operands are rows and columns of one.
    void product(const OnnxNode& from, int output, int bias) {
        const int a = from.input(0), b = from.input(1);
        if (a < 0 || b < 0) return void(fail(describe(from) + " needs two operands"));
        const bool is_gemm = from.type == "Gemm";
        const bool swaps_a = is_gemm && from.integer("transA", 0) != 0, swaps_b = is_gemm && from.integer("transB", 0) != 0;
        const Shape &sa = graph.value(a).shape, &sb = graph.value(b).shape;
        if (sa.empty() || sb.empty()) return void(fail(describe(from) + " multiplies a scalar"));
        Attributes::Product p;
        p.k = swaps_a ? sa[0] : sa.back();
        p.m = swaps_a ? sa.back() : sa.size() > 1 ? sa[sa.size() - 2] : 1;
        p.n = swaps_b ? sb[0] : sb.size() > 1 ? sb.back() : 1;
        const std::int64_t inner = swaps_b ? sb.back() : sb.size() > 1 ? sb[sb.size() - 2] : sb[0];
        if (inner != p.k) return void(fail(fmt::format("{} multiplies {} columns by {} rows", describe(from), p.k, inner), "shapes must fit"));
        const std::optional<Shape> shape = sample_shape(output);
        if (!shape) return;
        const std::int64_t count = element_count(*shape);

        // Activations by a matrix of weights: a linear layer, its weight kept as [outputs, inputs].
        if (is_activation(a) && is_weight(b) && sb.size() == 2 && !swaps_a && builder.shape(tensor(a)).back() == p.k && shape->back() == p.n &&
            count / p.n == element_count(builder.shape(tensor(a))) / p.k && can_be(b, {p.n, p.k})) {
            Attributes attributes;
            const bool has_bias = bias >= 0 && is_weight(bias) && elements(bias) == p.n && can_be(bias, {p.n});
            attributes.has_bias = has_bias;
            std::vector<ParameterId> parameters{parameter(b, {p.n, p.k})};
            if (has_bias) parameters.push_back(parameter(bias, {p.n}));
            emit(OperatorKind::linear, from, output, {tensor(a)}, std::move(parameters), attributes);
            if (bias >= 0 && !has_bias) add_operand(from, output, bias);
            return;
        }
        if (count % p.n != 0) return void(fail(describe(from) + " mixes samples of the batch", "export with a batch of 1"));
        const std::int64_t rows = count / p.n;
        p.batch = rows % p.m == 0 ? rows / p.m : 1;
        p.m = rows / p.batch;
        Attributes attributes;
        attributes.product = p;
        std::vector<TensorId> inputs;
        std::vector<ParameterId> parameters;
        for (int operand : {a, b}) {
            if (is_activation(operand)) inputs.push_back(tensor(operand));
            else if (is_weight(operand)) parameters.push_back(parameter(operand));
        }
        if (inputs.size() == 1 && !is_activation(a)) {
            // y = w x is y' = x' w': the activation first.
            std::swap(attributes.product.m, attributes.product.n);
        }
        if (inputs.empty() || inputs.size() + parameters.size() != 2) {
            // A product with a constant: its arithmetic counts, its constant has no gradient.
            if (inputs.empty()) return void(emit(OperatorKind::elementwise, from, output, {}, std::move(parameters)));
            inputs.push_back(constant_operand(from, inputs[0] == tensor(a) ? b : a));
        }
        emit(OperatorKind::matrix_product, from, output, std::move(inputs), std::move(parameters), attributes);
        if (bias >= 0) add_operand(from, output, bias);
    }

    TensorId constant_operand(const OnnxNode& from, int value) {
        OnnxNode named = from;
        named.name += ".constant";
        const Shape shape = graph.value(value).shape.empty() ? Shape{1} : graph.value(value).shape;
        return builder.input(unique_name(named), shape, core::DataType::fp32);
    }

    // A bias that is no plain row of weights.
    void add_operand(const OnnxNode& from, int output, int operand) {
        if (has_failed_) return;
        std::vector<TensorId> inputs{tensor(output)};
        std::vector<ParameterId> parameters;
        if (is_activation(operand)) inputs.push_back(tensor(operand));
        else if (is_weight(operand)) parameters.push_back(parameter(operand));
        OnnxNode named = from;
        named.name += ".bias";
        emit(OperatorKind::elementwise, named, output, std::move(inputs), std::move(parameters));
    }

    void convolution(const OnnxNode& from) {
        const int input = from.input(0), filter = from.input(1), bias = from.input(2), output = from.output();
        if (!is_activation(input) || !is_weight(filter)) return void(fail(describe(from) + ": its weights are not stored in the graph but computed"));
        const TensorId x = tensor(input);
        const std::optional<Shape> y = sample_shape(output);
        if (!y) return;
        const Shape kernel = graph.value(filter).shape;
        Attributes attributes;
        attributes.groups = from.integer("group", 1);
        attributes.is_transposed = from.type == "ConvTranspose";
        const Shape in = builder.shape(x);
        const std::size_t rank = kernel.size();
        const std::size_t out_axis = attributes.is_transposed ? 1 : 0;
        if (rank < 3 || in.size() + 1 != rank || y->size() + 1 != rank || kernel[1 - out_axis] * (attributes.is_transposed ? 1 : attributes.groups) != in[0] ||
            kernel[out_axis] * (attributes.is_transposed ? attributes.groups : 1) != (*y)[0])
            return void(fail(describe(from) + ": input, weight and groups do not fit"));
        if (!can_be(filter, kernel)) return void(fail(describe(from) + " reads a weight in another shape than another node does"));
        const std::vector<std::int64_t> strides = from.integers("strides"), dilations = from.integers("dilations"), pads = from.integers("pads");
        const auto is_one_value = [](const std::vector<std::int64_t>& list) {
            return std::all_of(list.begin(), list.end(), [&](std::int64_t x) { return x == list[0]; });
        };
        attributes.stride = strides.empty() ? 1 : strides[0];
        attributes.padding = pads.empty() ? 0 : pads[0];
        attributes.kernel_y = rank >= 4 ? kernel[2] : 1;
        attributes.kernel_x = kernel.back();
        std::vector<ParameterId> parameters{parameter(filter, kernel)};
        attributes.has_bias = bias >= 0 && is_weight(bias) && elements(bias) == (*y)[0] && can_be(bias, {(*y)[0]});
        if (attributes.has_bias) parameters.push_back(parameter(bias, {(*y)[0]}));
        const bool is_plain = rank == 4 && attributes.groups == 1 && !attributes.is_transposed && is_one_value(strides) && is_one_value(pads) &&
                              std::all_of(dilations.begin(), dilations.end(), [](std::int64_t d) { return d == 1; }) && follows(attributes, in, *y);
        emit(is_plain ? OperatorKind::conv2d : OperatorKind::convolution, from, output, {x}, std::move(parameters), attributes);
    }

    static bool follows(const Attributes& a, const Shape& in, const Shape& out) {
        return in.size() == 3 && out.size() == 3 && a.padding >= 0 && in[1] + 2 * a.padding >= a.kernel_y && in[2] + 2 * a.padding >= a.kernel_x &&
               out[1] == (in[1] + 2 * a.padding - a.kernel_y) / a.stride + 1 && out[2] == (in[2] + 2 * a.padding - a.kernel_x) / a.stride + 1;
    }

    void pool(const OnnxNode& from, TensorId x) {
        const std::optional<Shape> y = sample_shape(from.output());
        if (!y) return;
        const Shape in = builder.shape(x);
        Attributes attributes;
        attributes.is_maximum = from.type == "MaxPool" || from.type == "GlobalMaxPool";
        std::vector<std::int64_t> kernel = from.integers("kernel_shape");
        const std::vector<std::int64_t> strides = from.integers("strides"), pads = from.integers("pads"), dilations = from.integers("dilations");
        if (from.type.starts_with("Global") && in.size() == 3) kernel = {in[1], in[2]};
        const auto is_all = [](const std::vector<std::int64_t>& list, std::int64_t value) {
            return std::all_of(list.begin(), list.end(), [&](std::int64_t x) { return x == value; });
        };
        attributes.stride = strides.empty() ? 1 : strides[0];
        attributes.padding = pads.empty() ? 0 : pads[0];
        if (kernel.size() == 2) {
            attributes.kernel_y = kernel[0];
            attributes.kernel_x = kernel[1];
        }
        const bool is_plain = kernel.size() == 2 && y->size() == 3 && (*y)[0] == in[0] && is_all(strides, attributes.stride) &&
                              is_all(pads, attributes.padding) && is_all(dilations, 1) && follows(attributes, in, *y);
        const OperatorKind plain = attributes.is_maximum ? OperatorKind::max_pool : OperatorKind::average_pool;
        if (is_plain) attributes.is_maximum = false;  // told by the kind
        emit(is_plain ? plain : OperatorKind::pooling, from, from.output(), {x}, {}, attributes);
    }

    const OnnxGraph& graph;
    const OnnxPatterns patterns;
    const LoadOptions& options;
    core::Diagnostics& diagnostics;
    const std::string key;
    const core::SourceLocation place;
    GraphBuilder builder;
    std::vector<TensorId> tensors_;
    std::vector<Weight> weights_;
    std::vector<ParameterId> parameters_;  // by source value
    std::vector<bool> is_left_out_;
    std::map<std::string, int> names_;
    int logits_ = -1, loss_node_ = -1, unknowns_ = 0;
    bool has_failed_ = false, has_scaled_norms_ = false;
};

}  // namespace

bool has_mapping(const OnnxNode& node) { return other_operators().contains(node.type) || elementwise_operators().contains(node.type); }

std::optional<ModelGraph> model_of_onnx(const OnnxGraph& graph, const std::string& path, const LoadOptions& options, core::Diagnostics& diagnostics,
                                        const std::string& key) {
    return Mapper(graph, path, options, diagnostics, key).run();
}

std::optional<ModelGraph> read_onnx(const std::string& path, const LoadOptions& options, core::Diagnostics& diagnostics, const core::SourceLocation& referrer,
                                    const std::string& key) {
    std::optional<OnnxGraph> graph = read_onnx_graph(path, options, diagnostics, referrer, key);
    if (!graph) return std::nullopt;
    graph->name = std::filesystem::path(path).stem().string();
    return model_of_onnx(*graph, path, options, diagnostics, key);
}

}  // namespace model
