// Chakra execution traces (.et, MLCommons) of one rank as one measured step.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/diagnostics_fwd.h"
#include "validation/measured/measured_step.h"

namespace validation {

// `bytes` is the file. Nodes of the device count where any has a duration, else nodes of the host, those
// that another of a known kind called as part of it. Collectives are told by comm_type, with comm_size as
// their messages. Where no node has a start time (chakra_converter writes none) the step is the end of the
// last node when each begins as soon as its data dependencies have ended and its stream or thread is free.
// Diagnosed with byte: a message that is cut or damaged, an unknown node type, one id twice, a dependency on
// no node, dependencies in a circle, a trace without durations; a build without protobuf.
std::optional<MeasuredStep> read_chakra_trace(std::string_view bytes, const std::string& file,
                                              core::Diagnostics& diagnostics);

}  // namespace validation
