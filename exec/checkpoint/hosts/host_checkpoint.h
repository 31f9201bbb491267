// A checkpoint whose files lie in several hosts' folders, read by all ranks together: each rank its own
// folder's, and what it needs of others over the job's connections.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "exec/checkpoint/checkpoint.h"
#include "exec/checkpoint/hosts/host_folders.h"
#include "exec/transport/communicator.h"

namespace exec {

// Every rank calls. The newest checkpoint (of step `only`, where it is given) of which each file is whole in
// a folder; the same on every rank, each with what it needs. A rank holds what it gets from others in memory
// until the checkpoint goes. Those that are passed over name the files that are missing or damaged, and where
// they were written. Throws core::MachineError when a file cannot be read any more.
NewestCheckpoint open_newest(Communicator& communicator, const HostFolders& folders,
                             const std::string& directory, std::optional<std::int64_t> only,
                             const StateNeeds& needs);

// The leader of a folder, before tidy_checkpoints: where the job goes on from a checkpoint that a killed run
// named in other folders only, it is named here.
void complete_checkpoint(const std::string& directory, const CheckpointManifest& manifest);

}  // namespace exec
