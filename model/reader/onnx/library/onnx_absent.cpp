// Replacement of the other files of this folder in builds without libonnx.
#include "core/diagnostics.h"
#include "model/reader/onnx/onnx_graph.h"

namespace model {

std::optional<OnnxGraph> read_onnx_graph(const std::string& path, const LoadOptions&,
                                         core::Diagnostics& diagnostics, const core::SourceLocation& referrer,
                                         const std::string& key) {
    diagnostics.error(referrer, key, "this build reads no ONNX files: " + core::in_quotes(path, 200),
                      "install libonnx-dev, libprotobuf-dev and protobuf-compiler, then build again");
    return std::nullopt;
}

}  // namespace model
