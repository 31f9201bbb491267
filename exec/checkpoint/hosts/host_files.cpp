#include "exec/checkpoint/hosts/host_files.h"

#include <filesystem>
#include <system_error>

#include "exec/checkpoint/checkpoint.h"

namespace exec {

std::vector<std::string> folders_of(const std::string& directory, std::int64_t step) {
    return {checkpoint_folder(directory, step), partial_folder(directory, step)};
}

HostFile open_host_file(const std::string& directory, const CheckpointManifest& manifest, std::int32_t index,
                        bool verifies, std::string& failure) {
    for (const std::string& folder : folders_of(directory, manifest.step)) {
        std::error_code none;
        if (!std::filesystem::exists(folder + "/" + manifest.files[index].name, none)) continue;
        std::unique_ptr<const RankFile> file = RankFile::open(folder, manifest.files[index], failure);
        for (std::size_t i = 0; verifies && file && i < file->arrays().size(); ++i)
            if (!file->verify(i, failure)) file.reset();
        if (!file) continue;
        failure.clear();
        return {folder, std::move(file)};
    }
    return {};
}

}  // namespace exec
