// MPI without GPUDirect: the payload is copied to host memory, a ring over all ranks sums it there on one
// core a rank, and the result is copied back. Nothing overlaps within one call (Open MPI's coll/tuned ring,
// as PyTorch's and MXNet's MPI backends called it).
#include "sim/cost/collective/host_path.h"
#include "sim/cost/collective/rings.h"

namespace sim {

namespace {

constexpr core::Seconds copy_start = core::microseconds(10);
// A message between processes of a node through shared memory (Open MPI's vader): about a microsecond.
constexpr core::Seconds message_inside = core::microseconds(1);

}  // namespace

std::vector<Candidate> mpi_candidates(const LibraryContext& context, schedule::CollectiveKind kind,
                                      const Groups& groups) {
    if (kind == schedule::CollectiveKind::all_to_all || kind == schedule::CollectiveKind::rotate)
        return nccl_candidates(context.cluster, context.collective_network, kind, groups);
    const GroupShape shape = shape_of(context.cluster, groups.devices.front());
    const double n = shape.ranks, nodes = shape.nodes;
    const bool is_all_reduce = kind == schedule::CollectiveKind::all_reduce;
    const double steps = is_all_reduce ? 2 * (n - 1) : n - 1;
    const double over_an_edge = kind == schedule::CollectiveKind::broadcast ? 1.0 : steps / n;
    Candidate candidate{"mpi", "", {}};
    const double crossings = nodes > 1 ? steps * nodes / n : 0;
    candidate.latency =
        copy_start * 2 + message_inside * (steps - crossings) + host_message_time(context) * crossings;
    const double down = kind == schedule::CollectiveKind::all_gather ? 1 / n : 1.0,
                 up = kind == schedule::CollectiveKind::reduce_scatter ? 1 / n : 1.0;
    const std::vector<LinkShare> copies = host_copies(context, groups, down, up);
    // The ring leaves every node once; host_messages counts what a node sends to every other one.
    const std::vector<LinkShare> messages =
        nodes > 1 ? host_messages(context, groups, over_an_edge / (nodes - 1)) : std::vector<LinkShare>();
    candidate.links = together(copies, messages);
    // Every step reads a piece from the neighbour and its own and writes the sum.
    constexpr double passes = 3;
    const double sums =
        passes * over_an_edge * devices_on_a_node(context.cluster, groups) / host_sum_rate().value;
    candidate.seconds_per_byte = busiest(copies) + busiest(messages) + sums;
    candidate.has_phases = true;
    return {std::move(candidate)};
}

}  // namespace sim
