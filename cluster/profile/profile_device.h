// The [device] section of a profile.
#pragma once

#include "cluster/profile/profile_section.h"

namespace cluster {

// `path` is the dotted path of the table in messages and provenance ("device"). `shared_memory` stands in for
// memory = "share".
DeviceSpec read_device(const core::Value& table, const std::string& path, ProfileContext& context,
                       std::optional<core::Bytes> shared_memory = {});
// A table of link types: { nvlink = { kind = "nvlink", bandwidth = "25GB/s", ... }, ... }.
std::vector<LinkSpec> read_link_specs(const core::Value& table, const std::string& path,
                                      ProfileContext& context);

}  // namespace cluster
