// Sizes that depend on data. A graph holds one size for each tensor here, so that these are taken at the most
// that they can be: as many boxes as may be selected, as many elements as may differ from zero.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "model/reader/onnx/onnx_graph.h"

namespace model {

// Extents of the node's outputs (the same for each) at most, or nothing where its operator does not bound
// them. Shapes of its inputs are known.
std::optional<std::vector<std::int64_t>> largest_shape(const OnnxGraph& graph, const OnnxNode& node);

}  // namespace model
