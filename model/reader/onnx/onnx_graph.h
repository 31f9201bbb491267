// An ONNX graph as plain data: shapes inferred, small constants evaluated, nodes in topological order. Free
// of libonnx, so that few files include it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/diagnostics_fwd.h"
#include "model/load.h"

namespace model {

enum class OnnxType { floating, integer, boolean, other };

struct OnnxValue {
    std::string name;
    OnnxType type = OnnxType::other;
    bool has_shape = false;
    std::vector<std::int64_t> shape;          // the batch included
    std::optional<std::vector<double>> data;  // of small constants
    int producer = -1;                        // node
    std::vector<int> consumers;               // nodes, ascending, each once
    bool is_initializer = false, is_input = false, is_output = false;
    std::optional<bool> is_parameter;  // of a module, or its buffer, where the file says so
};

struct OnnxAttribute {
    std::vector<std::int64_t> integers;
    std::vector<double> reals;
    std::string text;
};

struct OnnxNode {
    std::string type, domain, name;
    std::vector<int> inputs;   // values; -1 = left out
    std::vector<int> outputs;  // likewise
    std::map<std::string, OnnxAttribute> attributes;

    std::int64_t integer(const std::string& key, std::int64_t fallback) const {
        const auto found = attributes.find(key);
        return found == attributes.end() || found->second.integers.empty() ? fallback
                                                                           : found->second.integers[0];
    }
    double real(const std::string& key, double fallback) const {
        const auto found = attributes.find(key);
        return found == attributes.end() || found->second.reals.empty() ? fallback : found->second.reals[0];
    }
    std::vector<std::int64_t> integers(const std::string& key) const {
        const auto found = attributes.find(key);
        return found == attributes.end() ? std::vector<std::int64_t>() : found->second.integers;
    }
    int input(std::size_t i) const { return i < inputs.size() ? inputs[i] : -1; }
    int output() const { return outputs.empty() ? -1 : outputs[0]; }
};
// "Conv node 'res2_conv1'" for messages.
std::string describe(const OnnxNode& node);

struct OnnxGraph {
    std::string name;
    std::int64_t opset = 0;
    std::int64_t batch = 1;  // samples in every activation
    std::vector<OnnxValue> values;
    std::vector<OnnxNode> nodes;
    std::vector<int> inputs, outputs;  // values
    bool lists_parameters = false;     // the file says which initialisers are parameters
    std::vector<std::string> assumptions;

    const OnnxValue& value(int id) const { return values[id]; }
    OnnxValue& value(int id) { return values[id]; }
};

// The values of a node's first output when they follow from small constants and shapes (Shape, Gather,
// Concat, arithmetic, ...): the operators that exporters compute shapes with. Its shape is known.
std::optional<std::vector<double>> fold(const OnnxGraph& graph, const OnnxNode& node);

// Puts the nodes in topological order, earliest first; order[n] tells which one node n was. Returns nothing,
// or some nodes of a cycle in words.
std::string sort_nodes(OnnxGraph& graph, std::vector<int>& order);

// Do we know how to express this operator? Names of the standard domain.
bool has_mapping(const OnnxNode& node);

std::optional<OnnxGraph> read_onnx_graph(const std::string& path, const LoadOptions& options,
                                         core::Diagnostics& diagnostics, const core::SourceLocation& referrer,
                                         const std::string& key);

}  // namespace model
