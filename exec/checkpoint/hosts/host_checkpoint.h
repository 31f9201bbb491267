// A checkpoint whose files lie in several hosts' folders, read by all ranks together: each rank its own
// folder's, and what it needs of others over the job's connections.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "exec/checkpoint/checkpoint.h"
#include "exec/checkpoint/hosts/host_folders.h"
#include "exec/transport/communicator.h"

namespace exec {

struct HostCheckpoint : NewestCheckpoint {
    std::vector<std::vector<int>> holders;  // by file of the checkpoint: the folders in which it is whole
};

// Every rank calls. The newest checkpoint (of step `only`, where it is given) of which each file is whole in
// a folder; the same on every rank, each with what it needs. A rank holds what it gets from others in memory
// until the checkpoint goes. Those that are passed over name the files that are missing or damaged, and where
// they were written. Throws core::MachineError when a file cannot be read any more.
HostCheckpoint open_newest(Communicator& communicator, const HostFolders& folders,
                           const std::string& directory, std::optional<std::int64_t> only,
                           const StateNeeds& needs);

}  // namespace exec
