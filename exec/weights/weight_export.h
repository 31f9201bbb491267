// The parameters of a checkpoint as one safetensors file that other programs read.
#pragma once

#include <string>

#include "exec/checkpoint/checkpoint.h"
#include "exec/weights/weight_names.h"

namespace exec {

// Writes whole parameters in fp32, by `names`, into FOLDER/NAME; the optimizer's arrays stay behind. All of
// them are in memory at once. The checkpoint must have been opened without needs. Returns the file's bytes.
// Throws core::MachineError with path and the system's words, also when the checkpoint lacks elements.
std::uint64_t export_weights(const Checkpoint& checkpoint, const model::ModelGraph& graph,
                             const WeightNames& names, const std::string& folder, const std::string& name);

}  // namespace exec
