// Segments of a sequence that pass through a model one after the other (Seq1F1B, arXiv 2406.03488): every operator works token by token but attention, which sees
// the keys and values of the segments before. In backward the last segment goes first, and leaves the earlier ones its part of the gradient of their keys and values.
#pragma once

#include <string>
#include <vector>

#include "model/cost.h"
#include "model/model_graph.h"

namespace model {

// Why sequences of this graph cannot be cut into so many equal segments ("its 15 tokens are not a multiple of 2", "attention of layers.0.attention.core is not
// causal"), or empty.
std::string segment_obstacle(const ModelGraph& graph, int segments);

// The graph of each segment: the same operators, tensors and parameters under the same ids, with fewer tokens. One graph, the given one, for one segment. There is no
// obstacle.
std::vector<ModelGraph> segment_graphs(const ModelGraph& graph, int segments);

// Keys and values of one attention operator, of a segment's own tokens, on one rank: what later segments read, and the size of the gradient they leave.
core::Bytes key_value_bytes(const ModelGraph& graph, const Operator& attention, const CostContext& context);

}  // namespace model
