// Arrays and whole files of checkpoints between ranks: pieces of at most 4 MiB, one after another.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "exec/checkpoint/hosts/host_folders.h"
#include "exec/checkpoint/rank_file.h"
#include "exec/transport/communicator.h"

namespace exec {

constexpr std::size_t most_floats_in_a_piece = std::size_t{1} << 20;
// Of arrays and files of checkpoints; beside texts and barriers (transport/exchange.h).
constexpr Tag file_tag = Tag(1) << 62 | Tag(1) << 59;

// The ranks of whose files `rank` writes copies, ascending.
std::vector<int> kept_by(const HostFolders& folders, int rank);

// Every rank calls once a checkpoint, from one thread, when its own file lies in `folder`; with a file of no
// name when it could not be written, so that nobody waits for it. Returns when all copies that this rank
// keeps lie beside it. A file that arrives is held in memory until it is written. Throws core::MachineError
// with path and the system's words.
void exchange_copies(Communicator& communicator, const HostFolders& folders, const std::string& folder,
                     const CheckpointFile& own);

}  // namespace exec
