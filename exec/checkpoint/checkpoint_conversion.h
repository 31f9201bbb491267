// A checkpoint as another plan of the same model would have written it.
#pragma once

#include <string>

#include "exec/checkpoint/checkpoint.h"
#include "model/model_fwd.h"
#include "schedule/program/program.h"

namespace exec {

// Writes the files of all ranks of `program` and the manifest into `directory`; steps, samples, seed, data
// and losses stay those of `from`. One rank's state is held at a time. `state_difference` must have found
// nothing. Throws core::MachineError with path and the system's words.
CheckpointManifest convert_checkpoint(const Checkpoint& from, const schedule::Program& program,
                                      const model::ModelGraph& graph, const std::string& directory);

}  // namespace exec
