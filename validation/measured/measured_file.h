// A file of measurements, whichever of the tools that are read wrote it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/diagnostics_fwd.h"
#include "validation/measured/measured_step.h"

namespace validation {

// What a file holds, packed by gzip or not: a Chakra execution trace (by its name, .et), a torch.profiler
// trace (JSON) or a report of DeepSpeed's flops profiler (by its headline). Diagnosed: any other, what the
// readers of each refuse, more than 512 MiB.
std::optional<MeasuredStep> read_measured_file(const std::string& file, core::Diagnostics& diagnostics);

// Of the file's bytes, unpacked; `file` names it in diagnostics.
std::optional<MeasuredStep> read_measured_bytes(std::string_view bytes, const std::string& file,
                                                core::Diagnostics& diagnostics);

}  // namespace validation
