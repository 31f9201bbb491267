// One job a checkpoint folder: a lock that the operating system lets go when its process ends, however.
#pragma once

#include <optional>
#include <string>

#include "core/units.h"
#include "exec/file_descriptor.h"

namespace exec {

struct CheckpointLock {
    FileDescriptor held;                     // open: the folder is this process's until it is closed
    std::optional<std::string> holder;       // who has it instead: "process 41 on node7"
    std::optional<std::string> unavailable;  // why this file system has no locks; then nothing is held
};

// Locks DIR/job.lock (flock), making the folder where it is not there. Waits `patience` for a job that is
// just ending. Throws core::MachineError when the folder or the file cannot be made.
CheckpointLock lock_checkpoints(const std::string& directory, core::Seconds patience);

}  // namespace exec
