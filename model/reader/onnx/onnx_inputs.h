// The extents of a graph's inputs for one sample: symbols fixed by the options, batches found.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "model/load.h"
#include "model/reader/onnx/onnx_graph.h"

namespace model {

struct OnnxExtent {
    std::optional<std::int64_t> value;
    std::string symbol;  // may be empty
};

struct OnnxDeclaredInput {
    std::string name;
    OnnxType type = OnnxType::other;
    bool has_shape = false;
    std::vector<OnnxExtent> extents;
};

struct OnnxInputProblem {
    std::string message, hint;
};

struct OnnxFixedInputs {
    std::vector<std::vector<std::int64_t>> shapes;  // of each input; empty where it has none
    std::map<std::string, std::int64_t> symbols;
    std::int64_t batch = 1;  // in every shape
    std::string assumption;  // empty: none
    std::vector<OnnxInputProblem> problems;
};

// Symbolic batches become one sample; other symbolic extents come from the options or are problems.
OnnxFixedInputs fix_onnx_inputs(const std::vector<OnnxDeclaredInput>& inputs, const LoadOptions& options);

}  // namespace model
