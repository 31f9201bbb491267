// Hardware profiles: hardware_profiles/*.toml, one file an instance type.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cluster/topology.h"
#include "core/diagnostics.h"
#include "core/value.h"

namespace cluster {

// `reference` is a profile name ("p4d.24xlarge", "local-cpu") or a path to a .toml. Unknown name: did-you-mean. `directory` resolves relative paths.
std::optional<InstanceType> load_instance(const std::string& reference, core::Diagnostics& diagnostics, const core::SourceLocation& referrer = {},
                                          const std::string& key = "cluster.instance", const std::string& directory = "");
// The `[cluster]` table of a scenario or plan: { instance = "p4d.24xlarge", nodes = 16 } with what-if overrides such as network_bandwidth = "800Gbps".
std::optional<Cluster> load_cluster(const core::Value& table, core::Diagnostics& diagnostics, const std::string& directory = "");

std::vector<std::string> instance_names();
// Where profiles are looked for: $SMSIM_HARDWARE_PROFILES, the installed folder, the source tree.
std::vector<std::string> profile_directories();
// Every number without a source or a date, every efficiency outside (0, 1], every unknown key: `smsim hardware --lint`.
void lint_profile(const std::string& path, core::Diagnostics& diagnostics);

}  // namespace cluster
