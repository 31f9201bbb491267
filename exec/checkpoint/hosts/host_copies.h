// Arrays and whole files of checkpoints between ranks: pieces of at most 4 MiB, one after another.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "exec/checkpoint/hosts/host_folders.h"
#include "exec/checkpoint/manifest.h"
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

// Every rank calls before training goes on from a checkpoint whose files are whole in `holders` (by file of
// the manifest: folders, ascending), or ends with it, when it is agreed that it does. A host was replaced, or
// a file damaged: what lies in fewer than `folders.copies` folders is copied into others, of which each
// counts from then on; a folder that has another checkpoint of that step is left alone. The folders of a
// killed run that lack only the name get it. How many files were copied, the same on every rank. Throws
// core::MachineError with path and the system's words.
int complete_copies(Communicator& communicator, const HostFolders& folders, const std::string& directory,
                    const CheckpointManifest& manifest, const std::vector<std::vector<int>>& holders);

}  // namespace exec
