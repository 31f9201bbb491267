#include "cluster/profile/load.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "cluster/build_topology.h"
#include "cluster/profile/local_machine.h"
#include "cluster/profile/profile_reader.h"
#include "cluster/synthetic.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "core/system/installed_data.h"

namespace cluster {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view local_name = "local-cpu";

bool is_path(const std::string& reference) {
    return reference.find('/') != std::string::npos || reference.ends_with(".toml");
}

bool is_file(const std::string& path) {
    std::error_code failure;
    return fs::is_regular_file(path, failure);
}

std::vector<std::string> files_in(const std::string& directory) {
    std::vector<std::string> files;
    std::error_code failure;
    for (const fs::directory_entry& entry : fs::directory_iterator(directory, failure))
        if (entry.path().extension() == ".toml") files.push_back(entry.path().string());
    std::sort(files.begin(), files.end());
    return files;
}

}  // namespace

std::vector<std::string> data_directories(const char* environment_variable, const std::string& folder) {
    std::vector<std::string> candidates;
    if (const char* directory = std::getenv(environment_variable); directory && *directory)
        candidates.emplace_back(directory);
    for (std::string& installed : core::installed_data(folder)) candidates.push_back(std::move(installed));
    candidates.push_back((fs::path(SOURCE_DIR) / folder).string());
    // A build folder that was moved with its sources: the first folder above the program that holds profiles.
    std::error_code failure;
    const fs::path program = fs::read_symlink("/proc/self/exe", failure);
    for (fs::path above = program.parent_path(); above.has_relative_path(); above = above.parent_path())
        candidates.push_back((above / folder).string());
    std::vector<std::string> found;
    for (const std::string& candidate : candidates)
        if (fs::is_directory(candidate, failure) &&
            std::none_of(found.begin(), found.end(),
                         [&](const std::string& other) { return fs::equivalent(candidate, other, failure); }))
            found.push_back(candidate);
    return found;
}

std::vector<std::string> profile_directories() {
    return data_directories("SMSIM_HARDWARE_PROFILES", "hardware_profiles");
}

std::vector<std::string> instance_names() {
    std::vector<std::string> names;
    for (const std::string& directory : profile_directories())
        for (const std::string& file : files_in(directory)) names.push_back(fs::path(file).stem().string());
    std::sort(names.begin(), names.end());
    names.erase(std::unique(names.begin(), names.end()), names.end());
    return names;
}

std::vector<std::string> profile_files() {
    std::vector<std::string> files;
    for (const std::string& directory : profile_directories())
        for (const std::string& folder : {directory, directory + "/devices"})
            for (const std::string& file : files_in(folder)) files.push_back(file);
    return files;
}

std::string profile_path(const std::string& reference, const std::string& directory) {
    if (is_path(reference)) {
        fs::path path(reference);
        if (path.is_relative() && !directory.empty()) path = fs::path(directory) / path;
        return is_file(path.string()) ? path.string() : "";
    }
    for (const std::string& folder : profile_directories())
        if (std::string path = folder + "/" + reference + ".toml"; is_file(path)) return path;
    return {};
}

std::optional<InstanceType> load_instance(const std::string& reference, core::Diagnostics& diagnostics,
                                          const core::SourceLocation& referrer, const std::string& key,
                                          const std::string& directory) {
    std::string path = profile_path(reference, directory);
    bool is_measured_here = false;
    if (reference == local_name) {
        const char* asked = std::getenv("SMSIM_LOCAL_PROFILE");
        std::string measured = local_profile_path();
        is_measured_here = is_file(measured);
        if (is_measured_here || (asked && *asked)) path = measured;
    }
    if (path.empty()) {
        if (is_path(reference)) {
            std::error_code failure;
            const std::string what = fs::is_directory(reference, failure) ? " is a folder, not a profile"
                                                                          : ": there is no such file";
            diagnostics.error(referrer, key, key + " = " + core::in_quotes(reference, 300) + what,
                              "known instances: " + core::list_in_words(instance_names()));
            return std::nullopt;
        }
        std::vector<std::string> names = instance_names();
        std::string near = core::did_you_mean(reference, names);
        core::Diagnostics unheard;
        const bool is_device = load_device(reference, unheard).has_value();
        diagnostics.error(
            referrer, key, key + " = " + core::in_quotes(reference) + " is no known instance",
            is_device ? "it is a device: a file with [cluster], device, devices_per_node, "
                        "intra, transport and network_bandwidth describes a cluster of yours "
                        "(docs/howto.md, 2)"
            : reference.find('=') != std::string::npos
                ? "it is a figure: --set cluster." + reference + " changes it of every instance type"
            : !near.empty() ? "did you mean " + core::in_quotes(near) + "?"
            : names.empty() ? "no profiles were found; set SMSIM_HARDWARE_PROFILES to their folder"
                            : "known: " + core::list_in_words(names) + "; or the path of a .toml profile");
        return std::nullopt;
    }
    std::optional<core::Value> document = core::load_document(path, diagnostics, referrer, key);
    if (!document) return std::nullopt;
    std::optional<InstanceType> instance = read_instance(*document, path, diagnostics);
    if (instance && is_measured_here && instance->devices != probe_local_machine().cores)
        instance->notes.push_back(
            "measured with " + std::to_string(instance->devices) + " cores, but this process may run on " +
            std::to_string(probe_local_machine().cores) + ": run `smexec profile` again");
    return instance;
}

void lint_profile(const std::string& path, core::Diagnostics& diagnostics) {
    std::optional<core::Value> document = core::load_document(path, diagnostics);
    if (!document) return;
    // An instance file says what it consists of; a device file only describes one device.
    if (document->find("instance") || document->find("topology")) {
        std::optional<InstanceType> instance = read_instance(*document, path, diagnostics, true);
        if (instance && instance->name != fs::path(path).stem())
            diagnostics.error(document->location, "name",
                              "name = \"" + instance->name + "\" is not the name of the file",
                              "a profile is found by its file name");
    } else {
        std::optional<DeviceFile> device = read_device_file(*document, path, diagnostics, true);
        if (device && device->device.name != fs::path(path).stem())
            diagnostics.error(document->location, "device.name",
                              "device.name = \"" + device->device.name + "\" is not the name of the file",
                              "a device is found by its file name");
    }
}

}  // namespace cluster
