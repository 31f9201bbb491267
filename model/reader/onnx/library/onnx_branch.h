// Graphs inside nodes: the branches of If, the bodies of Loop and Scan. Only for files that include libonnx.
#pragma once

#include <set>
#include <string>

namespace onnx {
class GraphProto;
class NodeProto;
}  // namespace onnx

namespace model {

// Tensors of the graph around it that the graphs inside the node read, at any depth.
std::set<std::string> names_from_outside(const onnx::NodeProto& node);

// The first tensor that a graph inside the node reads as a weight of a product, a convolution or a
// recurrence, or an empty text.
std::string weight_inside(const onnx::NodeProto& node);

// A branch of If as nodes of the graph around it: what it names itself starts with `prefix`, and its outputs
// have the node's names. Empty where the node has no such branch or they differ in number.
onnx::GraphProto inlined_branch(const onnx::NodeProto& node, bool is_then, const std::string& prefix);

}  // namespace model
