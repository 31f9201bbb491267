// Products, convolutions and pooling: the arithmetic of an imported graph.
#include "model/reader/onnx/onnx_mapper.h"
#include "model/reader/onnx/onnx_sizes.h"

#include <algorithm>

#include <fmt/core.h>

namespace model {

void OnnxMapper::product(const OnnxNode& from, int output, int bias) {
    const int a = from.input(0), b = from.input(1);
    if (a < 0 || b < 0) return void(fail(describe(from) + " needs two operands"));
    const bool is_gemm = from.type == "Gemm";
    const bool swaps_a = is_gemm && from.integer("transA", 0) != 0,
               swaps_b = is_gemm && from.integer("transB", 0) != 0;
    const Shape &sa = graph.value(a).shape, &sb = graph.value(b).shape;
    if (sa.empty() || sb.empty()) return void(fail(describe(from) + " multiplies a scalar"));
    Attributes::Product p;
    p.k = swaps_a ? sa[0] : sa.back();
    p.m = swaps_a ? sa.back() : sa.size() > 1 ? sa[sa.size() - 2] : 1;
    p.n = swaps_b ? sb[0] : sb.size() > 1 ? sb.back() : 1;
    const std::int64_t inner = swaps_b ? sb.back() : sb.size() > 1 ? sb[sb.size() - 2] : sb[0];
    if (inner != p.k)
        return void(fail(fmt::format("{} multiplies {} columns by {} rows", describe(from), p.k, inner),
                         "shapes must fit"));
    const std::optional<Shape> shape = sample_shape(output);
    if (!shape) return;
    const std::int64_t count = element_count(*shape);

    // Activations by a matrix of weights: a linear layer, its weight kept as [outputs, inputs].
    if (is_activation(a) && is_weight(b) && sb.size() == 2 && !swaps_a &&
        builder.shape(tensor(a)).back() == p.k && shape->back() == p.n &&
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
    if (count % p.n != 0)
        return void(fail(describe(from) + " mixes samples of the batch", "export with a batch of 1"));
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
        if (inputs.empty())
            return void(emit(OperatorKind::elementwise, from, output, {}, std::move(parameters)));
        inputs.push_back(constant_operand(from, inputs[0] == tensor(a) ? b : a));
    }
    emit(OperatorKind::matrix_product, from, output, std::move(inputs), std::move(parameters), attributes);
    if (bias >= 0) add_operand(from, output, bias);
}

void OnnxMapper::einsum(const OnnxNode& from) {
    const std::optional<EinsumExtents> extents = einsum_extents(graph, from);
    if (!extents)
        return void(fail(describe(from) + " is no product of two operands with each index once in each",
                         "write it as products of two, without an ellipsis"));
    std::vector<TensorId> inputs;
    std::vector<ParameterId> parameters;
    operands(from, inputs, parameters);
    if (from.inputs.size() == 1 || inputs.empty())  // a sum or another order of dimensions
        return void(emit(OperatorKind::elementwise, from, from.output(), inputs, parameters));
    for (const int operand : from.inputs)
        if (inputs.size() + parameters.size() < 2 && !is_activation(operand) && !is_weight(operand))
            inputs.push_back(constant_operand(from, operand));
    Attributes attributes;
    Attributes::Product& product = attributes.product;
    product = {extents->batch, extents->rows, extents->columns, extents->inner};
    // One sample of the batch, whichever indices it is of.
    const std::optional<Shape> shape = sample_shape(from.output());
    if (!shape) return;
    const std::int64_t all = product.batch * product.m * product.n, one = element_count(*shape);
    std::int64_t samples = all % one == 0 ? all / one : 0;
    for (std::int64_t* const extent : {&product.batch, &product.m, &product.n})
        if (samples > 1 && *extent % samples == 0) {
            *extent /= samples;
            samples = 1;
        }
    if (samples != 1)
        return void(fail(describe(from) + " mixes samples of the batch", "export with a batch of 1"));
    if (!is_activation(from.inputs[0])) std::swap(attributes.product.m, attributes.product.n);
    emit(OperatorKind::matrix_product, from, from.output(), inputs, parameters, attributes);
}

TensorId OnnxMapper::constant_operand(const OnnxNode& from, int value) {
    OnnxNode named = from;
    named.name += ".constant";
    const Shape shape = graph.value(value).shape.empty() ? Shape{1} : graph.value(value).shape;
    return builder.input(unique_name(named), shape, core::DataType::fp32);
}

void OnnxMapper::add_operand(const OnnxNode& from, int output, int operand) {
    if (has_failed_) return;
    std::vector<TensorId> inputs{tensor(output)};
    std::vector<ParameterId> parameters;
    if (is_activation(operand)) inputs.push_back(tensor(operand));
    else if (is_weight(operand)) parameters.push_back(parameter(operand));
    OnnxNode named = from;
    named.name += ".bias";
    emit(OperatorKind::elementwise, named, output, std::move(inputs), std::move(parameters));
}

void OnnxMapper::convolution(const OnnxNode& from) {
    const int input = from.input(0), filter = from.input(1), bias = from.input(2), output = from.output();
    if (!is_activation(input) || !is_weight(filter))
        return void(fail(describe(from) + ": its weights are not stored in the graph but computed"));
    TensorId x = tensor(input);
    const std::optional<Shape> result = sample_shape(output);
    if (!result) return;
    std::optional<Shape> y = result;
    const bool is_of_regions = has_regions(builder.shape(x), *result, graph.value(filter).shape.size());
    if (is_of_regions) {
        x = builder.general(OperatorKind::reshape, unique_name(from), {x}, {}, mosaic(builder.shape(x)), {},
                            has_gradient_at(input), core::DataType::fp32);
        y = mosaic(*result);
    }
    const Shape kernel = graph.value(filter).shape;
    Attributes attributes;
    attributes.groups = from.integer("group", 1);
    attributes.is_transposed = from.type == "ConvTranspose";
    const Shape in = builder.shape(x);
    const std::size_t rank = kernel.size();
    const std::size_t out_axis = attributes.is_transposed ? 1 : 0;
    if (rank < 3 || in.size() + 1 != rank || y->size() + 1 != rank ||
        kernel[1 - out_axis] * (attributes.is_transposed ? 1 : attributes.groups) != in[0] ||
        kernel[out_axis] * (attributes.is_transposed ? attributes.groups : 1) != (*y)[0])
        return void(fail(describe(from) + ": input, weight and groups do not fit"));
    if (!can_be(filter, kernel))
        return void(fail(describe(from) + " reads a weight in another shape than another node does"));
    const std::vector<std::int64_t> strides = from.integers("strides"),
                                    dilations = from.integers("dilations"), pads = from.integers("pads");
    const auto is_one_value = [](const std::vector<std::int64_t>& list) {
        return std::all_of(list.begin(), list.end(), [&](std::int64_t x) { return x == list[0]; });
    };
    attributes.stride = strides.empty() ? 1 : strides[0];
    attributes.padding = pads.empty() ? 0 : pads[0];
    attributes.kernel_y = rank >= 4 ? kernel[2] : 1;
    attributes.kernel_x = kernel.back();
    std::vector<ParameterId> parameters{parameter(filter, kernel)};
    attributes.has_bias =
        bias >= 0 && is_weight(bias) && elements(bias) == (*y)[0] && can_be(bias, {(*y)[0]});
    if (attributes.has_bias) parameters.push_back(parameter(bias, {(*y)[0]}));
    const bool is_plain =
        rank == 4 && attributes.groups == 1 && !attributes.is_transposed && is_one_value(strides) &&
        is_one_value(pads) &&
        std::all_of(dilations.begin(), dilations.end(), [](std::int64_t d) { return d == 1; }) &&
        follows(attributes, in, *y);
    const TensorId maps = emit(is_plain ? OperatorKind::conv2d : OperatorKind::convolution, from, output, {x},
                               std::move(parameters), attributes, true, y);
    if (is_of_regions) emit(OperatorKind::reshape, from, output, {maps}, {}, {}, true, result);
}

// A sample of several regions, [regions, channels, y, x], as the heads of detection models see them.
bool OnnxMapper::has_regions(const Shape& in, const Shape& out, std::size_t rank) {
    return in.size() == rank && out.size() == rank && in[0] == out[0];
}

// Regions below one another as one image, [channels, regions y, x]: the same arithmetic and bytes.
OnnxMapper::Shape OnnxMapper::mosaic(const Shape& regions) {
    Shape image(regions.begin() + 1, regions.end());
    image[1] *= regions[0];
    return image;
}

bool OnnxMapper::follows(const Attributes& a, const Shape& in, const Shape& out) {
    return in.size() == 3 && out.size() == 3 && a.padding >= 0 && in[1] + 2 * a.padding >= a.kernel_y &&
           in[2] + 2 * a.padding >= a.kernel_x &&
           out[1] == (in[1] + 2 * a.padding - a.kernel_y) / a.stride + 1 &&
           out[2] == (in[2] + 2 * a.padding - a.kernel_x) / a.stride + 1;
}

void OnnxMapper::pool(const OnnxNode& from, TensorId x) {
    const std::optional<Shape> y = sample_shape(from.output());
    if (!y) return;
    const Shape in = builder.shape(x);
    Attributes attributes;
    attributes.is_maximum = from.type == "MaxPool" || from.type == "GlobalMaxPool";
    std::vector<std::int64_t> kernel = from.integers("kernel_shape");
    const std::vector<std::int64_t> strides = from.integers("strides"), pads = from.integers("pads"),
                                    dilations = from.integers("dilations");
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
    const bool is_plain = kernel.size() == 2 && y->size() == 3 && (*y)[0] == in[0] &&
                          is_all(strides, attributes.stride) && is_all(pads, attributes.padding) &&
                          is_all(dilations, 1) && follows(attributes, in, *y);
    const OperatorKind plain = attributes.is_maximum ? OperatorKind::max_pool : OperatorKind::average_pool;
    if (is_plain) attributes.is_maximum = false;  // told by the kind
    emit(is_plain ? plain : OperatorKind::pooling, from, from.output(), {x}, {}, attributes);
}

}  // namespace model
