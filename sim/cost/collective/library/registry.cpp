#include "sim/cost/collective/library.h"

namespace sim {

namespace {

using schedule::CollectiveKind;

bool carries_all_reduce(CollectiveKind kind) { return kind == CollectiveKind::all_reduce; }

constexpr Library libraries[] = {
    {"smddp", smddp_candidates,
     [](CollectiveKind kind) {
         return kind == CollectiveKind::all_reduce || kind == CollectiveKind::all_gather;
     },
     smddp_unsupported},
    {"horovod", horovod_candidates, carries_all_reduce},
    {"mpi", mpi_candidates,
     [](CollectiveKind kind) {
         return kind != CollectiveKind::all_to_all && kind != CollectiveKind::rotate;
     }},
    {"parameter-server", parameter_server_candidates, carries_all_reduce},
};

}  // namespace

const Library* find_library(std::string_view name) {
    for (const Library& library : libraries)
        if (library.name == name) return &library;
    return nullptr;
}

}  // namespace sim
