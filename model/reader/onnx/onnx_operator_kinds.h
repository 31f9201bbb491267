// The supported operators of ONNX, and the tensors that backward of the elementwise ones reads.
#pragma once

#include <map>
#include <string>

namespace model {

// Tensors that backward of an elementwise operator reads: nothing, inputs, the output, both; inputs if two of
// them have gradients; or it has no gradient at all.
enum class OnnxKeeps { nothing, inputs, output, both, factors, no_gradient };

const std::map<std::string, OnnxKeeps>& onnx_elementwise_operators();

}  // namespace model
