// Operators that only move or pick elements, or work on each element alone.
#include "model/reader/onnx/onnx_mapper.h"

#include <algorithm>

#include <fmt/core.h>

namespace model {

namespace {

bool is_any_of(const std::string& text, std::initializer_list<const char*> words) {
    return std::any_of(words.begin(), words.end(), [&](const char* word) { return text == word; });
}

}  // namespace

void OnnxMapper::reshape(const OnnxNode& from, TensorId x) {
    const std::optional<Shape> shape = sample_shape(from.output());
    if (!shape) return;
    if (*shape == builder.shape(x)) return alias(from.output(), x);
    if (element_count(*shape) != element_count(builder.shape(x)))
        return void(fail(describe(from) + " mixes samples of the batch", "export with a batch of 1"));
    emit(OperatorKind::reshape, from, from.output(), {x}, {});
}

void OnnxMapper::transpose(const OnnxNode& from, TensorId x) {
    const Shape& shape = graph.value(from.input(0)).shape;
    std::vector<std::int64_t> order = from.integers("perm");
    if (order.empty())
        for (std::size_t i = shape.size(); i-- > 0;) order.push_back(i);
    std::int64_t last = -1;
    bool moves = false;
    for (std::int64_t d : order) {
        if (d < 0 || d >= std::ssize(shape) || shape[d] == 1) continue;
        moves = moves || d < last;
        last = d;
    }
    if (!moves) return reshape(from, x);
    emit(OperatorKind::permute, from, from.output(), {x}, {});
}

void OnnxMapper::elementwise(const OnnxNode& from, OnnxKeeps keeps) {
    const int output = from.output();
    std::vector<TensorId> inputs;
    std::vector<ParameterId> parameters;
    operands(from, inputs, parameters);
    const std::optional<Shape> shape = sample_shape(output);
    if (!shape) return;
    const OnnxType type = graph.value(output).type;
    if (inputs.size() == 1 && parameters.empty()) {
        const bool is_same = builder.shape(inputs[0]) == *shape && graph.value(from.inputs[0]).type == type;
        if (is_same &&
            is_any_of(from.type, {"Cast", "Expand", "Tile", "Pad", "Resize", "Upsample", "Sum", "Mean"}))
            return alias(output, inputs[0]);
    }
    if (from.type == "Add" || from.type == "Sum")
        if (inputs.size() == 2 && parameters.empty() && builder.shape(inputs[0]) == *shape &&
            builder.shape(inputs[1]) == *shape && type == OnnxType::floating)
            return void(emit(OperatorKind::add, from, output, inputs, {}));
    Attributes attributes;
    attributes.saves_inputs = keeps == OnnxKeeps::inputs || keeps == OnnxKeeps::both ||
                              (keeps == OnnxKeeps::factors && inputs.size() + parameters.size() > 1);
    attributes.saves_output = keeps == OnnxKeeps::output || keeps == OnnxKeeps::both;
    emit(OperatorKind::elementwise, from, output, std::move(inputs), std::move(parameters), attributes,
         keeps != OnnxKeeps::no_gradient);
}

void OnnxMapper::gather(const OnnxNode& from) {
    const int data = from.input(0), indices = from.input(1), output = from.output();
    if (is_weight(data) && is_activation(indices) && from.type == "Gather" && from.integer("axis", 0) == 0) {
        const Shape table = graph.value(data).shape;
        const Shape ids = builder.shape(tensor(indices));
        if (table.size() == 2 && ids.size() == 1 && can_be(data, table) &&
            sample_shape(output) == std::optional<Shape>(Shape{ids[0], table[1]}))
            return void(
                emit(OperatorKind::embedding, from, output, {tensor(indices)}, {parameter(data, table)}));
    }
    std::vector<TensorId> inputs;
    std::vector<ParameterId> parameters;
    if (is_activation(data)) inputs.push_back(tensor(data));
    else if (is_weight(data)) parameters.push_back(parameter(data));
    if (is_activation(indices)) inputs.push_back(tensor(indices));
    emit(OperatorKind::gather, from, output, inputs, parameters);
}

void OnnxMapper::selection(const OnnxNode& from) {
    std::vector<TensorId> inputs;
    for (int input : from.inputs)
        if (is_activation(input)) inputs.push_back(tensor(input));
    if (inputs.empty()) return;  // of weights or constants: nothing that a step computes
    if (from.type == "RoiAlign") {
        // Regions share the pixels of one map, which caches hold: read once, written once a region.
        Attributes attributes;
        const auto mode = from.attributes.find("mode");
        attributes.is_maximum = mode != from.attributes.end() && mode->second.text == "max";
        if (!is_activation(from.input(0)))
            return void(fail(describe(from) + " reads regions of a constant", "there is nothing to train"));
        emit(OperatorKind::pooling, from, from.output(), {inputs[0]}, {}, attributes);
        return;
    }
    const bool has_values = from.type == "TopK" || from.type == "Compress";
    for (const int output : from.outputs)
        if (output >= 0 && (!graph.value(output).consumers.empty() || graph.value(output).is_output))
            emit(has_values && output == from.output() ? OperatorKind::gather : OperatorKind::elementwise,
                 from, output, inputs, {}, {}, has_values && output == from.output());
}

}  // namespace model
