// Folders of checkpoints that hosts do not share: each holds the files of the ranks that see it, and a
// manifest that names those of all.
//
//   node0:/scratch/states/step-00000040/rank-0000.safetensors, rank-0001.safetensors, manifest.json
//   node1:/scratch/states/step-00000040/rank-0002.safetensors, rank-0003.safetensors, manifest.json
//
// A manifest is written when all files of all folders are, so one manifest is enough to know that a
// checkpoint is committed; what lacks only its manifest elsewhere gets it from there.
#pragma once

#include <string>
#include <vector>

#include "exec/transport/communicator.h"

namespace exec {

struct HostFolders {
    std::vector<int> folder_of_rank;
    std::vector<std::string> places;  // by folder: "node7:/scratch/states", as its first rank sees it
    int copies = 1;                   // of every rank's file, each in another folder

    int count() const { return static_cast<int>(places.size()); }
    std::vector<int> ranks_in(int folder) const;  // ascending
    // The first rank of its folder: it alone locks, names and removes there.
    bool leads(int rank) const;
    // The ranks that write copies of what `rank` writes, in `copies` - 1 other folders.
    std::vector<int> keepers_of(int rank) const;
};

// Every rank calls, with its folder, which is made where it is not there, and its host's name. Folders are
// told apart by a random word in DIR/folder.id, not by hosts' names: emulated hosts may share a disk, and
// hosts a file system. Throws core::MachineError when the folder or the file cannot be made.
HostFolders find_host_folders(Communicator& communicator, const std::string& directory,
                              const std::string& host, int copies);

}  // namespace exec
