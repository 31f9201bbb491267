// Groups of ONNX nodes that frameworks run as one operator: exporters take layer norm, GELU and biases apart.
#pragma once

#include <map>
#include <vector>

#include "model/reader/onnx/onnx_graph.h"

namespace model {

struct OnnxPattern {
    enum class Kind {
        layer_norm,
        rms_norm,
        gelu,
        gelu_tanh,
        silu,
        scaled_batch_norm,
        biased_product
    } kind = Kind::gelu;
    int first = -1;  // node that names the operator, and for products and batch norms does the work
    int input = -1;  // value
    std::vector<int> parameters;  // values: scale and shift, or the bias
    double epsilon = 1e-5;
};

struct OnnxPatterns {
    std::map<int, OnnxPattern> at_last;  // by the node that makes the group's result
    std::vector<char> is_absorbed;       // nodes of groups, their last ones excepted
};

OnnxPatterns find_patterns(const OnnxGraph& graph);

}  // namespace model
