// Segments of a sequence that pass through a model one after the other (Seq1F1B, arXiv 2406.03488): every
// operator works token by token but attention, which sees the keys and values of the segments before. In
// backward the last segment goes first, and leaves the earlier ones its part of the gradient of their keys
// and values.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/unsupported.h"
#include "model/model_graph.h"
#include "model/operators/cost.h"

namespace model {

// Why sequences of this graph cannot be cut into so many equal segments: "its 15 tokens are not a multiple of
// 2", "attention of layers.0.attention.core is not causal".
std::optional<core::Unsupported> segments_unsupported(const ModelGraph& graph, int segments);

// The graph of each segment: the same operators, tensors and parameters under the same ids, with fewer
// tokens. The segments are supported. One graph for one segment: the given one itself, which must outlive
// this.
class SegmentGraphs {
public:
    SegmentGraphs(const ModelGraph& graph, int segments);
    SegmentGraphs(SegmentGraphs&&) = default;
    SegmentGraphs& operator=(SegmentGraphs&&) = default;

    std::size_t size() const { return all_.size(); }
    const ModelGraph& operator[](std::size_t segment) const { return all_[segment]; }
    auto begin() const { return all_.begin(); }
    auto end() const { return all_.end(); }

private:
    std::vector<ModelGraph> cut_;
    std::span<const ModelGraph> all_;
};

// The same, each made once: a copy of the graph for every segment takes as long as to price it. Thread-safe.
class KnownSegmentGraphs {
public:
    // The graph must outlive this.
    const SegmentGraphs& of(const ModelGraph& graph, int count);

private:
    std::mutex guard_;
    std::map<std::pair<const ModelGraph*, int>, SegmentGraphs> known_;
};

// Keys and values of one attention operator, of a segment's own tokens, on one rank: what later segments
// read, and the size of the gradient they leave.
core::Bytes key_value_bytes(const ModelGraph& graph, const Operator& attention, const CostContext& context);

}  // namespace model
