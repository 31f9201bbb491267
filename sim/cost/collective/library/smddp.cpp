// SageMaker's data-parallel library (SageMaker developer guide, data-parallel-intro; Herring, SC 2020;
// documentation of SMDDP AllGather, 2023). No gain over NCCL is stated here: bytes, hops, rates and
// multiprocessors are, and what comes of them is printed beside the published figures by bench/smddp.cpp.
//
// All-reduce. The devices of a node sum over NVLink, each copies its part to host memory, and the nodes' CPUs
// are the servers of balanced fusion buffers: buffer part i goes to node i, which sums it and sends it back.
// One hop each candidate instead of 2 (n - 1) steps, from host memory to host memory, with no kernel on the
// devices meanwhile.
//
// All-gather. Pieces cross the network over a mesh, one hop, and are spread inside the node over NVLink while
// the next ones arrive.
#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "sim/cost/collective/host_path.h"
#include "sim/cost/collective/rings.h"

namespace sim {

namespace {

using schedule::CollectiveKind;

// Copies are started by the host.
constexpr core::Seconds copy_start = core::microseconds(10);
// "Fewer than nine" of A100's 108 multiprocessors against up to 24 of NCCL.
constexpr double gather_multiprocessors = 8;
// Beyond these NCCL gathers: SMDDP_AG_SCRATCH_BUFFER_SIZE_BYTES holds one input,
// SMDDP_AG_SORT_BUFFER_SIZE_BYTES an eighth of the result.
constexpr core::Bytes scratch = core::mebibytes(16), sort_buffer = core::mebibytes(128);
constexpr double parts_sorted = 8;

// Around a ring of each node's devices, `share` of the payload over every edge.
std::vector<LinkShare> inside_nodes(const LibraryContext& context, const Groups& groups, double share) {
    std::vector<Flow> flows;
    for (const std::vector<std::int32_t>& group : groups.devices)
        for (const std::vector<std::int32_t>& node : orders_in_nodes(context.cluster, group)) {
            if (node.size() < 2) continue;
            for (const Ring& ring : rings(context.cluster, node))
                for (std::size_t i = 0; i < ring.devices.size(); ++i)
                    flows.push_back(
                        {ring.devices[i], ring.devices[(i + 1) % ring.devices.size()], ring.share * share});
        }
    return context.collective_network.links(flows);
}

// Fixed time of NCCL's collective inside the node.
core::Seconds latency_inside(const LibraryContext& context, CollectiveKind kind, const Groups& groups) {
    Groups node;
    node.devices.push_back(orders_in_nodes(context.cluster, groups.devices.front()).front());
    if (node.size() < 2) return {};
    const std::vector<Candidate> candidates =
        nccl_candidates(context.cluster, context.collective_network, kind, node);
    core::Seconds least = candidates.front().latency;
    for (const Candidate& candidate : candidates) least = std::min(least, candidate.latency);
    return least;
}

Candidate all_reduce(const LibraryContext& context, const Groups& groups, const GroupShape& shape) {
    const double k = shape.ranks_per_node, nodes = shape.nodes;
    Candidate candidate{"smddp", "", {}};
    candidate.latency = latency_inside(context, CollectiveKind::reduce_scatter, groups) +
                        latency_inside(context, CollectiveKind::all_gather, groups) + copy_start * 2 +
                        host_message_time(context) * 2;
    const std::vector<LinkShare> nvlink = inside_nodes(context, groups, 2 * (k - 1) / k);
    const std::vector<LinkShare> outside =
        together(host_copies(context, groups, 1 / k, 1 / k),
                 host_messages(context, groups, 2 / nodes));  // part i pushed, its sum fetched
    candidate.links = together(nvlink, outside);
    // A server reads the parts of all nodes and writes the sum, for every group of its node.
    const double served = devices_on_a_node(context.cluster, groups) / k;
    const double sums = (1 + 1 / nodes) * served / host_sum_rate().value;
    candidate.seconds_per_byte = std::max(busiest(candidate.links), sums);
    candidate.has_phases = true;
    // Kernels run only while NVLink is used.
    candidate.multiprocessors = nccl_multiprocessors(context.cluster.instance.device) *
                                std::min(1.0, busiest(nvlink) / candidate.seconds_per_byte);
    return candidate;
}

Candidate all_gather(const LibraryContext& context, const Groups& groups, const GroupShape& shape) {
    const double k = shape.ranks_per_node, n = shape.ranks;
    Candidate candidate{"smddp", "", {}};
    candidate.latency =
        latency_inside(context, CollectiveKind::all_gather, groups) + context.collective_network.step();
    std::vector<Flow> flows;
    for (const std::vector<std::int32_t>& group : groups.devices) {
        const std::vector<std::vector<std::int32_t>> nodes = orders_in_nodes(context.cluster, group);
        for (std::size_t a = 0; a < nodes.size(); ++a)
            for (std::size_t b = 0; b < nodes.size(); ++b)
                for (std::size_t lane = 0; a != b && lane < nodes[a].size(); ++lane)
                    flows.push_back({nodes[a][lane], nodes[b][lane % nodes[b].size()], 1 / n});
    }
    candidate.links =
        together(inside_nodes(context, groups, (k - 1) / k), context.collective_network.links(flows));
    candidate.seconds_per_byte = busiest(candidate.links);
    candidate.multiprocessors = gather_multiprocessors;
    candidate.up_to = std::min(scratch * n, sort_buffer * parts_sorted);
    return candidate;
}

}  // namespace

// SageMaker developer guide, "Supported frameworks, AWS Regions, and instances types" of the data-parallel
// library (2023-07); later versions run on p4d and p4de alone.
std::optional<core::Unsupported> smddp_unsupported(const cluster::InstanceType& instance) {
    constexpr std::array supported = {"p3.16xlarge", "p3dn.24xlarge", "p4d.24xlarge", "p4de.24xlarge"};
    if (std::find(supported.begin(), supported.end(), instance.name) != supported.end()) return std::nullopt;
    return core::Unsupported{
        fmt::format("SMDDP runs on p3.16xlarge, p3dn.24xlarge, p4d.24xlarge and p4de.24xlarge, not on {}",
                    instance.name)};
}

std::vector<Candidate> smddp_candidates(const LibraryContext& context, CollectiveKind kind,
                                        const Groups& groups) {
    const GroupShape shape = shape_of(context.cluster, groups.devices.front());
    // Made for several nodes; on one it leaves the work to NCCL.
    const bool applies =
        shape.nodes > 1 && (kind == CollectiveKind::all_reduce || kind == CollectiveKind::all_gather);
    std::vector<Candidate> candidates =
        nccl_candidates(context.cluster, context.collective_network, kind, groups);
    if (!applies) return candidates;
    Candidate own = kind == CollectiveKind::all_reduce ? all_reduce(context, groups, shape)
                                                       : all_gather(context, groups, shape);
    // The library takes its own candidate wherever it can, whether or not NCCL would be faster.
    if (!own.up_to) return {std::move(own)};
    for (Candidate& candidate : candidates) candidate.above = own.up_to;
    candidates.push_back(std::move(own));
    return candidates;
}

}  // namespace sim
