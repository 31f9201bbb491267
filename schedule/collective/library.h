// The library that carries out a plan's collectives on GPUs: NCCL, or one that replaces some of its
// collectives. The names are here, the costs in sim/cost/library/.
#pragma once

#include <string>
#include <vector>

namespace schedule {

struct CommunicationLibrary {
    std::string name;
    std::string summary;
};
// "auto" first: NCCL on GPUs, copies through shared memory on CPUs.
const std::vector<CommunicationLibrary>& communication_libraries();

}  // namespace schedule
