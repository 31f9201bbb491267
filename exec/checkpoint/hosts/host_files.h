// What of a checkpoint lies in one host's folder.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "exec/checkpoint/manifest.h"
#include "exec/checkpoint/rank_file.h"

namespace exec {

// Where a step's files may lie, named or not: a run that was killed has named a checkpoint in some folders
// only.
std::vector<std::string> folders_of(const std::string& directory, std::int64_t step);

struct HostFile {
    std::string folder;
    std::unique_ptr<const RankFile> content;  // null: it is not there, or damaged
};

// File `index` of the manifest, with `verifies` as a whole; an empty failure where the folder has no such
// file.
HostFile open_host_file(const std::string& directory, const CheckpointManifest& manifest, std::int32_t index,
                        bool verifies, std::string& failure);

}  // namespace exec
