// Which of a file's stored floating tensors are trained. Exporters write parameters, buffers and what they
// computed of either as initialisers of one kind; names, shapes and readers tell them apart.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "model/reader/onnx/onnx_graph.h"

namespace model {

struct OnnxStored {
    std::vector<bool> is_constant;  // by value: masks, buffers, frozen norms
    // Scores of every head [.., heads, w^2, w^2] that were computed of a table of relative positions: the
    // table's shape, [(2 w - 1)^2, heads] (Swin, arXiv 2103.14030, section 3.2).
    std::map<int, std::vector<std::int64_t>> tables;
    // Weights of recurrences that nodes (`joining`) put together of stored parts: each is one parameter.
    std::set<int> joined, joining;
    std::vector<std::string> remarks;
};

OnnxStored classify_stored(const OnnxGraph& graph);

// Made of a module's tensors by the exporter, and named by it: "onnx::Add_12" (TorchScript), or not listed
// among the parameters where the file lists them (torch.export).
bool is_named_by_exporter(const OnnxGraph& graph, const OnnxValue& value);

}  // namespace model
