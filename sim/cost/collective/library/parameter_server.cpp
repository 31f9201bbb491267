// Parameter servers on the CPUs of the workers' nodes, the parameters dealt out equally (Li et al., OSDI
// 2014; TensorFlow's and MXNet's distributed modes). Every GPU sends its whole gradient, nothing is summed
// inside a node first: a node's cards carry as many payloads as it has GPUs.
#include <algorithm>

#include "sim/cost/collective/host_path.h"

namespace sim {

namespace {

constexpr core::Seconds copy_start = core::microseconds(10);

}  // namespace

std::vector<Candidate> parameter_server_candidates(const LibraryContext& context,
                                                   schedule::CollectiveKind kind, const Groups& groups) {
    if (kind != schedule::CollectiveKind::all_reduce)
        return nccl_candidates(context.cluster, context.collective_network, kind, groups);
    const GroupShape shape = shape_of(context.cluster, groups.devices.front());
    const double k = shape.ranks_per_node, nodes = shape.nodes;
    Candidate candidate{"parameter-server", "", {}};
    candidate.latency = copy_start * 2 + (nodes > 1 ? host_message_time(context) * 2 : core::Seconds(0));
    const std::vector<LinkShare> copies = host_copies(context, groups, 1, 1);
    // To each server 1/nodes of the gradients of all k workers of a node, and as much back from it.
    const std::vector<LinkShare> messages =
        nodes > 1 ? host_messages(context, groups, 2 * k / nodes) : std::vector<LinkShare>();
    candidate.links = together(copies, messages);
    // A server's part of the gradients of every GPU of its nodes is read and added.
    const double sums = 2 * devices_on_a_node(context.cluster, groups) / host_sum_rate().value;
    candidate.seconds_per_byte = std::max(busiest(candidate.links), sums);
    candidate.has_phases = true;
    return {std::move(candidate)};
}

}  // namespace sim
