// Who carries out a plan's collectives on GPUs: NCCL, or a library that replaces some of them. The names are
// here, what each costs is in sim/cost/library/.
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
