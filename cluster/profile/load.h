// Hardware profiles: hardware_profiles/*.toml, one file an instance type.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cluster/topology.h"
#include "core/diagnostics_fwd.h"
#include "core/value.h"

namespace cluster {

// `reference` is a profile name ("p4d.24xlarge", "local-cpu") or a path to a .toml. Unknown name:
// did-you-mean. `directory` resolves relative paths.
std::optional<InstanceType> load_instance(const std::string& reference, core::Diagnostics& diagnostics,
                                          const core::SourceLocation& referrer = {},
                                          const std::string& key = "cluster.instance",
                                          const std::string& directory = "");
// The `[cluster]` table of a scenario or plan: { instance = "p4d.24xlarge", nodes = 16 } with what-if
// overrides network_bandwidth = "800Gbps" (of a node), network_latency, network_efficiency, gpudirect, memory
// (of a device), price (USD per hour of a node); a factor ("2x") is of the profile's figure. Without an
// instance, a cluster made to measure: { device = "A100-SXM4-80GB", devices_per_node = 8, nodes = 4, intra =
// "nvswitch" | "pcie" | "host", network_bandwidth = "1600Gbps" }; see docs/formats.md.
std::optional<Cluster> load_cluster(const core::Value& table, core::Diagnostics& diagnostics,
                                    const std::string& directory = "");

std::vector<std::string> instance_names();
// Folders that hold shipped data of a name ("hardware_profiles"): what the environment variable names, the
// installed folder, the source tree, the folders above the program; each once, first the one that wins.
std::vector<std::string> data_directories(const char* environment_variable, const std::string& folder);
// Folders in which profiles are looked for, $SMSIM_HARDWARE_PROFILES first.
std::vector<std::string> profile_directories();
// The file of a profile, by name or path; empty when there is none.
std::string profile_path(const std::string& reference, const std::string& directory = "");
// Every number without a source or a date, every efficiency outside (0, 1], every unknown key: `smsim
// hardware --lint`. Instance and device files alike.
void lint_profile(const std::string& path, core::Diagnostics& diagnostics);
// All shipped files, instances and devices, which `--lint` without a name visits.
std::vector<std::string> profile_files();

}  // namespace cluster
