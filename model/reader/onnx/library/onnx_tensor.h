// Tensors and attributes of libonnx as plain data, and back. Only for files that include libonnx.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/reader/onnx/onnx_graph.h"

namespace onnx {
class AttributeProto;
class TensorProto;
class ValueInfoProto;
}  // namespace onnx

namespace model {

inline constexpr std::int64_t most_onnx_constant_elements = 8192;

// The kind of a TensorProto::DataType.
OnnxType onnx_type_of(int element);

// Elements of a small constant, if they are in the file and as many as its dimensions say.
std::optional<std::vector<double>> data_of(const onnx::TensorProto& tensor);
// The reverse, for element types that constants are evaluated in.
onnx::TensorProto tensor_of(const std::vector<double>& data, const std::vector<std::int64_t>& shape,
                            int element);

// What torch.export says of an initialiser in the metadata of its value ("PARAMETER", "BUFFER", ...).
std::optional<std::string> input_kind_of(const onnx::ValueInfoProto& info);

OnnxAttribute attribute_of(const onnx::AttributeProto& from);

}  // namespace model
