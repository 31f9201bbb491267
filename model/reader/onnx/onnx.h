// An .onnx file as a model: operators mapped to our kinds, weights as parameters, one sample, a loss appended
// where there is none.
#pragma once

#include "model/load.h"
#include "model/reader/onnx/onnx_graph.h"

namespace model {

// An operator that has no mapping is an error that names operator type and node, unless
// options.allow_unknown: then it is priced by its bytes.
std::optional<ModelGraph> read_onnx(const std::string& path, const LoadOptions& options,
                                    core::Diagnostics& diagnostics, const core::SourceLocation& referrer,
                                    const std::string& key);
// The second half: from the plain graph. `path` is for messages.
std::optional<ModelGraph> model_of_onnx(const OnnxGraph& graph, const std::string& path,
                                        core::Diagnostics& diagnostics, const std::string& key);

}  // namespace model
