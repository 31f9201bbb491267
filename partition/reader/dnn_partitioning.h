// The JSON graphs of dnn-partitioning (Tarnawski et al., NeurIPS 2020; github msr-fiddle/dnn-partitioning) as
// placement problems. The readers of costed graphs live beside the planner because they carry costs and
// device limits, not operators: model/ has nothing to make of them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/diagnostics_fwd.h"
#include "core/value.h"
#include "partition/placement.h"

namespace partition {

// Times of the file are milliseconds. Nodes of one colour stay together; only forward nodes order the items;
// a colour with backward nodes alone is ordered by its backward edges reversed. No contiguous placement can
// part colours on a cycle of that order: they become one item, unless only free placements are asked for
// (then the edges of the cycle that run back are no precedence).
std::optional<PlacementProblem> read_dnn_partitioning(const core::Value& document,
                                                      core::Diagnostics& diagnostics,
                                                      bool is_contiguous = true);

// A split in the format's own result form, {"fpgas": [{"nodes": [...]}], "cpus": [...]}; colours with one
// node named are completed. Diagnoses unknown, doubly placed and missing nodes and split colours.
std::optional<std::vector<PlacedStage>> read_dnn_partitioning_split(const core::Value& document,
                                                                    const PlacementProblem& problem,
                                                                    core::Diagnostics& diagnostics);

}  // namespace partition
