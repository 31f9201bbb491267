// Piper's JSON graphs (github msr-fiddle/piper): nodes with tensor-parallel configurations. See
// replicated_placement.h for what is made of them.
#pragma once

#include <optional>

#include "core/diagnostics_fwd.h"
#include "core/value.h"
#include "partition/replicated/replicated_placement.h"

namespace partition {

// Times and rates are taken as the file has them (seconds and bytes per second by its own description).
std::optional<ReplicatedProblem> read_piper(const core::Value& document, core::Diagnostics& diagnostics);

}  // namespace partition
