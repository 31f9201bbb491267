// What --target names: a profile, several by their family or a pattern, or the cluster of a file; and what
// --set changes of each.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cluster/topology.h"
#include "core/diagnostics_fwd.h"
#include "core/value.h"

namespace api {

struct NamedTarget {
    std::string name;         // of a profile, or a path
    bool is_of_many = false;  // of a family or pattern: left out where it does not apply
};

// "p4d.24xlarge": itself, like everything that is not known; "p4d": every size of the family; "p*" and
// "g?dn.*": every profile that matches; "all": every one.
std::vector<NamedTarget> named_targets(const std::vector<std::string>& given);

// "cluster.network_bandwidth=2x" and the like as a [cluster] table. Only what may differ from a profile can
// be set: neither the instance nor the number of nodes.
core::Value cluster_changes(const std::vector<std::string>& assignments, core::Diagnostics& diagnostics);

// A profile, or the [cluster] of a scenario or plan file with what its [what_if] says; `changes` over it.
// `table` of the result is null where a profile is taken as it is.
std::optional<cluster::Cluster> load_target(const NamedTarget& target, const core::Value& changes,
                                            core::Diagnostics& diagnostics);

}  // namespace api
