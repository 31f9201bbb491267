// The [topology] section of a profile.
#pragma once

#include "cluster/profile/profile_section.h"

namespace cluster {

// Adds the vertices and links to an instance whose device, number of devices and network figures are read
// already.
void read_topology(const core::Value& table, InstanceType& instance, int cards, ProfileContext& context);

}  // namespace cluster
