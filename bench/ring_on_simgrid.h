// The ring all-reduce of bench/events.cpp on SimGrid, where it is installed.
#pragma once

#include <string>
#include <vector>

namespace bench {

struct SimgridRun {
    std::string version, how;
    double processor_seconds = 0, simulated_seconds = 0;
};

// Devices on nodes of eight; every device has a port out and one in, a node four cards out and four in. Empty
// without SimGrid.
std::vector<SimgridRun> ring_on_simgrid(int devices, double bytes, double latency, double port, double card);

}  // namespace bench
