// What passes between two ranks of this machine over each transport that they may be joined by: two processes
// of this program are started for each.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cluster/topology.h"
#include "core/units.h"

namespace exec::transport {

struct MeasuredTransport {
    std::string name;  // "tcp", "mpi"
    cluster::TransportRate rate;
    std::optional<std::string> failure;  // why it could not be measured
};

// `command` is what each process runs, after the launcher's own words: it measures the links of its world and
// writes an instance of them to the file that follows, as `smexec profile --links-only --out FILE` does. A
// transport that takes longer than the limit is ended and named.
std::vector<MeasuredTransport> measure_transports(const std::vector<std::string>& command,
                                                  core::Seconds time_limit);

}  // namespace exec::transport
