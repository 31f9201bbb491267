// An ONNX file without its weights: the protobuf messages copied with every large payload left out, so that
// memory is bounded by the graph, not by the weights.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/diagnostics_fwd.h"

namespace model {

// Payloads above this are skipped on disk and never read; shapes and other constants of the graph are
// smaller.
inline constexpr std::int64_t largest_onnx_payload = 65536;

// The serialised ModelProto. Files above 2 GiB (which protobuf cannot hold) and truncated or corrupt ones are
// diagnosed with the byte where reading stopped.
std::optional<std::string> onnx_skeleton(const std::string& path, core::Diagnostics& diagnostics,
                                         const core::SourceLocation& referrer, const std::string& key);

}  // namespace model
