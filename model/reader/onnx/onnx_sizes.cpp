#include "model/reader/onnx/onnx_sizes.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <string>

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

// "bhid,bhjd->bhij" without spaces as operands and result; without an arrow the indices that occur once, in
// the alphabet's order (ONNX, Einsum).
struct Equation {
    std::vector<std::string> operands;
    std::string result;
};

Equation parsed(std::string text) {
    std::erase(text, ' ');
    Equation equation;
    const std::size_t arrow = text.find("->");
    const std::string left = text.substr(0, arrow);
    for (std::size_t begin = 0; begin <= left.size();) {
        const std::size_t comma = std::min(left.find(',', begin), left.size());
        equation.operands.push_back(left.substr(begin, comma - begin));
        begin = comma + 1;
    }
    if (arrow != std::string::npos) {
        equation.result = text.substr(arrow + 2);
    } else {
        std::map<char, int> count;
        for (const std::string& operand : equation.operands)
            for (const char index : operand) ++count[index];
        for (const auto& [index, times] : count)
            if (times == 1) equation.result += index;
    }
    return equation;
}

}  // namespace

std::optional<EinsumExtents> einsum_extents(const OnnxGraph& graph, const OnnxNode& node) {
    const auto text = node.attributes.find("equation");
    if (text == node.attributes.end() || node.inputs.empty() || node.inputs.size() > 2) return std::nullopt;
    const Equation equation = parsed(text->second.text);
    if (equation.operands.size() != node.inputs.size()) return std::nullopt;
    std::map<char, std::int64_t> extents;
    for (std::size_t k = 0; k < equation.operands.size(); ++k) {
        const std::string& indices = equation.operands[k];
        if (node.inputs[k] < 0) return std::nullopt;
        const Shape& shape = graph.value(node.inputs[k]).shape;
        if (indices.size() != shape.size()) return std::nullopt;
        for (std::size_t d = 0; d < shape.size(); ++d) {
            if (!std::isalpha(static_cast<unsigned char>(indices[d])) ||
                indices.find(indices[d], d + 1) != std::string::npos)
                return std::nullopt;
            const auto [entry, is_new] = extents.try_emplace(indices[d], shape[d]);
            if (!is_new && entry->second != shape[d]) return std::nullopt;
        }
    }
    EinsumExtents result;
    for (const char index : equation.result) {
        if (!extents.contains(index)) return std::nullopt;
        result.output.push_back(extents[index]);
    }
    for (const auto& [index, extent] : extents) {
        const bool is_kept = equation.result.find(index) != std::string::npos,
                   is_of_first = equation.operands[0].find(index) != std::string::npos,
                   is_of_second = equation.operands.back().find(index) != std::string::npos;
        (!is_kept                      ? result.inner
         : is_of_first && is_of_second ? result.batch
         : is_of_first                 ? result.rows
                                       : result.columns) *= extent;
    }
    return result;
}

std::optional<std::vector<std::int64_t>> largest_shape(const OnnxGraph& graph, const OnnxNode& node) {
    const int input = node.input(0);
    if (!node.domain.empty() || input < 0) return std::nullopt;
    const Shape& shape = graph.value(input).shape;
    if (node.type == "NonZero")
        return Shape{std::max<std::int64_t>(std::ssize(shape), 1), element_count(shape)};
    if (node.type == "NonMaxSuppression") return selected_boxes(graph, node);
    if (node.type == "TopK" || node.type == "Slice") return shape;
    if (node.type == "Einsum") {
        const std::optional<EinsumExtents> extents = einsum_extents(graph, node);
        return extents ? std::optional<Shape>(extents->output) : std::nullopt;
    }
    if (node.type == "Compress")
        return node.attributes.contains("axis") ? shape : Shape{element_count(shape)};
    return std::nullopt;
}

}  // namespace model
