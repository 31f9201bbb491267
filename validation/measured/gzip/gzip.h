// Packed traces: torch.profiler's tensorboard_trace_handler(use_gzip=True) writes .json.gz.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "core/diagnostics_fwd.h"

namespace validation {

// By its first two bytes (RFC 1952, section 2.3.1), whatever the file is called.
bool is_gzip(std::string_view bytes);

// The members of a gzip file one after the other. Diagnosed with the byte of the file: damage (its checksum
// included), an end too early, bytes that follow; a text of more than `most_bytes`; a build without zlib.
std::optional<std::string> unpacked(std::string_view bytes, const std::string& file,
                                    core::Diagnostics& diagnostics, std::size_t most_bytes);

}  // namespace validation
