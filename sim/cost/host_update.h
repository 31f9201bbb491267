// What an optimizer on the host takes (Plan::optimizer_offload), and gradients that add up there
// (Plan::parameter_offload): its processors stream the state of all ranks of a node through the node's
// memory.
#pragma once

#include <cstdint>

#include "cluster/topology.h"
#include "core/units.h"
#include "schedule/plan/plan.h"
#include "sim/cost/constants.h"

namespace sim {

class HostUpdate {
public:
    // Zero: the plan updates on its devices, or its devices are processors, which are their own hosts.
    HostUpdate() = default;
    HostUpdate(const schedule::Plan& plan, const cluster::Cluster& cluster, const CostConstants& constants);

    bool is_there() const { return seconds_per_byte_ > 0; }
    core::Seconds of(double elements) const {
        return core::Seconds(seconds_per_byte_ * bytes_per_element_ * elements);
    }
    // A pass over so many bytes, and one that adds to so many: both are read, the sum is written.
    core::Seconds reading(core::Bytes bytes) const { return core::Seconds(seconds_per_byte_ * bytes.value); }
    core::Seconds adding(core::Bytes bytes) const { return reading(bytes) * 3; }

private:
    double seconds_per_byte_ = 0;  // of one rank's, while all ranks of its node are at it
    double bytes_per_element_ = 0;
};

// Is there a host apart from the devices, the rate of whose memory the instance does not state?
bool lacks_host_bandwidth(const cluster::Cluster& cluster);

// What an update streams, wherever it is: the gradient is read, state and values are read and written; with
// fp32 values also the copy that forward reads is written.
double update_bytes_per_parameter(const schedule::Plan& plan);

}  // namespace sim
