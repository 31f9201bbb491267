// PipeDream's text profiles (github msr-fiddle/pipedream, DAPPLE's are the same):
// `id -- description -- forward_compute_time=ms, backward_compute_time=ms, activation_size=bytes,
// parameter_size=bytes`, then tab-indented edges `a -- b`.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/diagnostics_fwd.h"
#include "partition/hierarchical/hierarchical_placement.h"

namespace partition {

// An activation of several tensors is written [a; b; c] and counts as their sum. As PipeDream's optimizer
// does, sources described "Input..." and sinks described
// "__getitem__..." are left out: the data loader feeds every stage, and nobody reads what nobody consumes.
// Levels and limits are the caller's to set.
std::optional<HierarchicalProblem> read_pipedream(std::string_view text, const std::string& file_name,
                                                  core::Diagnostics& diagnostics);

// Does the text start like such a profile? For choosing a format by content.
bool looks_like_pipedream(std::string_view text);

}  // namespace partition
