#include "sim/cost/collective/library.h"

namespace sim {

namespace {

constexpr Library libraries[] = {
    {"smddp", smddp_ways},
    {"horovod", horovod_ways},
    {"mpi", mpi_ways},
    {"parameter-server", parameter_server_ways},
};

}  // namespace

const Library* find_library(std::string_view name) {
    for (const Library& library : libraries)
        if (library.name == name) return &library;
    return nullptr;
}

}  // namespace sim
