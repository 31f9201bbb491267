// A profile document to an instance or a device.
#pragma once

#include <optional>

#include "cluster/profile/profile_section.h"

namespace cluster {

inline constexpr int profile_schema = 1;

// `document` is a whole file. Devices named by the instance are looked for in the profile directories.
std::optional<InstanceType> read_instance(const core::Value& document, const std::string& file,
                                          core::Diagnostics& diagnostics, bool must_have_provenance = false);

// A device file: the device, its other names, its provenance and notes.
struct DeviceFile {
    DeviceSpec device;
    std::vector<std::string> aliases;
    std::vector<std::string> notes;
    std::map<std::string, Provenance> provenance;
    std::string file;
};
std::optional<DeviceFile> read_device_file(const core::Value& document, const std::string& file,
                                           core::Diagnostics& diagnostics, bool must_have_provenance = false);
// By name or alias; unknown: did-you-mean.
std::optional<DeviceFile> find_device_file(const std::string& name, core::Diagnostics& diagnostics,
                                           const core::SourceLocation& referrer, const std::string& key);

}  // namespace cluster
