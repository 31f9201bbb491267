#include "sim/cost/collective/library.h"

namespace sim {

namespace {

constexpr Library libraries[] = {
    {"smddp", smddp_candidates},
    {"horovod", horovod_candidates},
    {"mpi", mpi_candidates},
    {"parameter-server", parameter_server_candidates},
};

}  // namespace

const Library* find_library(std::string_view name) {
    for (const Library& library : libraries)
        if (library.name == name) return &library;
    return nullptr;
}

}  // namespace sim
