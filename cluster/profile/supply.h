// What a profile says of an instance beside what a step needs: how often spot instances are reclaimed, and
// what its boards draw. Both are unknown where the profile has no figure.
#pragma once

#include <optional>
#include <string>

#include "cluster/topology.h"
#include "core/diagnostics_fwd.h"

namespace cluster {

// Share of an instance type's spot instances that are reclaimed within a month: a class with its limits.
struct ReclaimClass {
    double least = 0;
    std::optional<double> most;  // nothing: the class has no upper limit
    std::string date, source;
};

struct Supply {
    std::optional<ReclaimClass> reclaims;
    std::optional<double> board_watts;  // power limit of one device
    std::string board_watts_source;
};

// Reads the files that the instance came from again. An instance built by hand has none, and no figures.
Supply supply_of(const InstanceType& instance, core::Diagnostics& diagnostics);

}  // namespace cluster
