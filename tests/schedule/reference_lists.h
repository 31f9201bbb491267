// Lists that PyTorch, Megatron-LM, the zero-bubble authors, DeepSeek and DeepSpeed generate with their own
// code (reference/schedules/README.md).
#pragma once

#include <catch2/catch.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "core/diagnostics.h"
#include "schedule/schedule_text.h"

namespace reference_lists {

inline const std::filesystem::path folder = std::filesystem::path(SHARED_DIR) / "reference/schedules";

inline bool are_absent() {
    if (std::filesystem::is_directory(folder)) return false;
    WARN("skipped: no reference lists at " << folder.string());
    return true;
}

inline std::vector<std::filesystem::path> files_of(const char* group) {
    std::vector<std::filesystem::path> files;
    for (const std::filesystem::directory_entry& entry : std::filesystem::directory_iterator(folder / group))
        if (entry.path().extension() == ".csv" && entry.path().filename() != "INDEX.csv")
            files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    return files;
}

inline std::string read(const std::filesystem::path& path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

inline std::optional<schedule::Schedule> load(const std::filesystem::path& path) {
    core::Diagnostics diagnostics;
    std::optional<schedule::Schedule> schedule =
        schedule::parse_schedule(read(path), path.string(), diagnostics);
    if (!schedule) UNSCOPED_INFO(core::format(diagnostics));
    return schedule;
}

}  // namespace reference_lists
