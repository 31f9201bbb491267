#include "model/reader/onnx/onnx_sizes.h"

#include <algorithm>

namespace model {

namespace {

using Shape = std::vector<std::int64_t>;

// boxes [batch, boxes, 4], scores [batch, classes, boxes], at most this many boxes a class -> [selected, 3].
std::optional<Shape> selected_boxes(const OnnxGraph& graph, const OnnxNode& node) {
    const int scores = node.input(1), most = node.input(2);
    if (scores < 0 || graph.value(scores).shape.size() != 3) return std::nullopt;
    const Shape& shape = graph.value(scores).shape;
    std::int64_t boxes = shape[2];
    // Without the input no box is selected (ONNX); torchvision's exports give the largest integer.
    if (most >= 0 && graph.value(most).data && graph.value(most).data->size() == 1 &&
        (*graph.value(most).data)[0] >= 1 && (*graph.value(most).data)[0] < static_cast<double>(boxes))
        boxes = static_cast<std::int64_t>((*graph.value(most).data)[0]);
    return Shape{shape[0] * shape[1] * boxes, 3};
}

}  // namespace

std::optional<std::vector<std::int64_t>> largest_shape(const OnnxGraph& graph, const OnnxNode& node) {
    const int input = node.input(0);
    if (!node.domain.empty() || input < 0) return std::nullopt;
    const Shape& shape = graph.value(input).shape;
    if (node.type == "NonZero")
        return Shape{std::max<std::int64_t>(std::ssize(shape), 1), element_count(shape)};
    if (node.type == "NonMaxSuppression") return selected_boxes(graph, node);
    if (node.type == "TopK" || node.type == "Slice") return shape;
    if (node.type == "Compress")
        return node.attributes.contains("axis") ? shape : Shape{element_count(shape)};
    return std::nullopt;
}

}  // namespace model
