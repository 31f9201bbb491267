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

// What an Einsum of one or two operands multiplies: the extents of its indices, by their part. Nothing where
// the equation has an ellipsis, an index twice in one operand, or does not fit the shapes.
struct EinsumExtents {
    std::vector<std::int64_t> output;
    std::int64_t batch = 1, rows = 1, columns = 1, inner = 1;  // of both, of the first, of the second; summed
};
std::optional<EinsumExtents> einsum_extents(const OnnxGraph& graph, const OnnxNode& node);

}  // namespace model
