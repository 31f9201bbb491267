// The types of one node's outputs, by libonnx's own inference functions. Only for files that include libonnx.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/reader/onnx/onnx_graph.h"

namespace onnx {
class NodeProto;
class TensorProto;
class TypeProto;
}  // namespace onnx

namespace model {

// The newest operator set that can be read: libonnx's own, or beyond it those whose operators can be said in
// its words.
std::int64_t newest_onnx_opset();

struct OnnxInference {
    bool is_known = false;               // libonnx knows the operator (otherwise there are no types)
    std::string problem;                 // empty: none
    std::vector<onnx::TypeProto> types;  // of the outputs
};

// `opset` is that of the node's domain (0: not imported). Of inputs that are left out or not constant, types
// and data are null.
OnnxInference infer_outputs(const OnnxGraph& graph, const OnnxNode& node, const onnx::NodeProto& proto,
                            std::int64_t opset, std::vector<const onnx::TypeProto*> types,
                            std::vector<const onnx::TensorProto*> data);

}  // namespace model
