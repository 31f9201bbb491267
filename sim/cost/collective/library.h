// What libraries beside NCCL offer for a collective. One file a library in sim/cost/collective/library/, one
// line in the registry; the names are schedule::communication_libraries().
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "cluster/topology.h"
#include "core/unsupported.h"
#include "schedule/program/program.h"
#include "sim/cost/collective/candidate.h"
#include "sim/cost/collective/nccl.h"
#include "sim/cost/collective/network.h"

namespace sim {

struct LibraryContext {
    const cluster::Cluster& cluster;
    Network& collective_network;  // NVLink at the rate of NCCL's channels
    Network& copy_network;        // ... of copies
};

struct Library {
    std::string_view name;
    // All it offers for this collective, NCCL's candidates among them where it leaves the choice to NCCL.
    std::vector<Candidate> (*candidates)(const LibraryContext& context, schedule::CollectiveKind kind,
                                         const Groups& groups);
    // Collectives that it carries out itself; NCCL does the others.
    bool (*carries)(schedule::CollectiveKind kind);
    // Instances that its documentation names, in words; nothing where any will do.
    std::optional<core::Unsupported> (*unsupported)(const cluster::InstanceType& instance) = nullptr;
};
// Null: "auto" and "nccl", and names that are not known.
const Library* find_library(std::string_view name);

std::vector<Candidate> smddp_candidates(const LibraryContext& context, schedule::CollectiveKind kind,
                                        const Groups& groups);
std::optional<core::Unsupported> smddp_unsupported(const cluster::InstanceType& instance);
std::vector<Candidate> horovod_candidates(const LibraryContext& context, schedule::CollectiveKind kind,
                                          const Groups& groups);
std::vector<Candidate> mpi_candidates(const LibraryContext& context, schedule::CollectiveKind kind,
                                      const Groups& groups);
std::vector<Candidate> parameter_server_candidates(const LibraryContext& context,
                                                   schedule::CollectiveKind kind, const Groups& groups);

}  // namespace sim
