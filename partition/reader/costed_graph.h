// Our own costed graphs in TOML as placement problems; docs/formats.md describes the keys.
//
//   version = 1
//   [graph]
//   devices = 4
//   memory = "16GiB"
//   bandwidth = "25GB/s"
//   [[node]]
//   name = "embedding"
//   time = "3ms"          # forward and backward of one micro-batch
//   memory = "1GiB"       # weights, gradients, optimizer state
//   activations = "64MiB" # kept for backward, a micro-batch
//   output = "8MiB"       # sent to consumers elsewhere, its gradient sent back
//   [[node]]
//   name = "layer0"
//   inputs = ["embedding"]
//   ...
#pragma once

#include <optional>

#include "core/diagnostics_fwd.h"
#include "core/value.h"
#include "partition/placement.h"

namespace partition {

struct CostedGraphOverrides {
    std::optional<core::BytesPerSecond> bandwidth;
    bool is_contiguous = true;  // false: only free placements are asked for
};

// No contiguous placement can part colocated nodes on a cycle of their order: they become one item, unless
// only free placements are asked for (then the edges of the cycle that run back are no precedence).
std::optional<PlacementProblem> read_costed_graph(const core::Value& document, core::Diagnostics& diagnostics,
                                                  const CostedGraphOverrides& overrides = {});

}  // namespace partition
