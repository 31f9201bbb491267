// Recurrent layers (LSTM, GRU, RNN): the projection of all tokens at once, one product a step and direction,
// and the gates.
#include "core/diagnostics.h"
#include "model/reader/onnx/onnx_mapper.h"

#include <fmt/core.h>

namespace model {

namespace {

// Gates that a step computes: input, output, forget and cell; update, reset and hidden (ONNX, LSTM and GRU).
std::int64_t gates_of(const std::string& type) { return type == "LSTM" ? 4 : type == "GRU" ? 3 : 1; }

}  // namespace

bool OnnxMapper::recurrence(const OnnxNode& from) {
    const int x = from.input(0), w = from.input(1), r = from.input(2), bias = from.input(3);
    if (!is_activation(x) || !is_weight(w) || !is_weight(r)) return false;
    const Shape &sequence = graph.value(x).shape, &input_weight = graph.value(w).shape,
                &hidden_weight = graph.value(r).shape;
    const std::int64_t gates = gates_of(from.type);
    if (sequence.size() != 3 || input_weight.size() != 3 || hidden_weight.size() != 3) return false;
    const std::int64_t steps = sequence[from.integer("layout", 0) != 0 ? 1 : 0], width = input_weight[2],
                       directions = hidden_weight[0], hidden = hidden_weight[2], rows = gates * hidden;
    const Shape projection{directions * rows, width}, recurrent{directions, rows, hidden};
    if (input_weight != Shape{directions, rows, width} || hidden_weight[1] != rows ||
        element_count(builder.shape(tensor(x))) != steps * width ||
        builder.shape(tensor(x)).back() != width || !can_be(w, projection) || !can_be(r, recurrent))
        return false;
    int output = -1;
    for (const int one : from.outputs)
        if (output < 0) output = one;
    if (output < 0) return true;

    Shape all_gates = builder.shape(tensor(x));
    all_gates.back() = directions * rows;
    const TensorId projected = emit(OperatorKind::linear, from, output, {tensor(x)},
                                    {parameter(w, projection)}, {}, true, all_gates);
    Attributes product;
    product.product = {steps * directions, 1, rows, hidden};
    const TensorId stepped = emit(OperatorKind::matrix_product, from, output, {projected},
                                  {parameter(r, recurrent)}, product, true, all_gates);
    // Backward reads the gates (of the product) and the states.
    Attributes gating;
    gating.saves_output = true;
    std::vector<TensorId> inputs{projected, stepped};
    constexpr std::size_t first_state = 5;  // initial_h, initial_c
    for (std::size_t i = first_state; i < from.inputs.size() && i < first_state + 2; ++i)
        if (is_activation(from.inputs[i])) inputs.push_back(tensor(from.inputs[i]));
    std::vector<ParameterId> biases;
    if (bias >= 0 && is_weight(bias)) biases.push_back(parameter(bias));
    const bool has_sequence = output == from.output();
    const TensorId states =
        emit(OperatorKind::elementwise, from, output, std::move(inputs), std::move(biases), gating, true,
             has_sequence ? std::nullopt : std::optional<Shape>(Shape{steps, directions, hidden}));
    // The last states are part of all.
    for (const int last : from.outputs)
        if (last >= 0 && (last != output || !has_sequence) &&
            (!graph.value(last).consumers.empty() || graph.value(last).is_output))
            emit(OperatorKind::slice, from, last, {states}, {});
    builder.graph().assumptions.push_back(
        fmt::format("{}: its {} steps are priced as products one after another, without the time in which a "
                    "step waits for the launch of its kernels",
                    describe(from), steps));
    return true;
}

}  // namespace model
