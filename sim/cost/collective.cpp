#include "sim/cost/collective.h"

#include <algorithm>

#include "core/diagnostics.h"
#include "schedule/collective/rounds.h"
#include "sim/cost/rings.h"

namespace sim {

namespace {

using schedule::CollectiveKind;

// Fixed time of one NCCL collective before its first step: base latency of ring and tree, Simple protocol, NCCL 2.30.7 src/graph/tuning.cc (read 2026-06-11).
// Shared-memory collectives of CPU ranks start with a barrier that the link latency covers.
core::Seconds base_latency(const cluster::DeviceSpec& device) { return device.architecture.starts_with("sm") ? core::microseconds(8.4) : core::Seconds(0); }

// What one channel of NCCL moves over one NVLink of 25 (sm100: 50) GB/s: NCCL 2.30.7 src/graph/topo.h (read 2026-06-11). Twelve links at 20 GB/s are the 235
// GB/s that nccl-tests reach on eight A100; eighteen at 20.6 the 370 of an H100 node without SHARP (NVIDIA GTC 2024, S62129). Peer copies are faster.
std::optional<double> nccl_nvlink_efficiency(const cluster::DeviceSpec& device) {
    if (device.architecture == "sm70" || device.architecture == "sm80") return 20.0 / 25.0;
    if (device.architecture == "sm90") return 20.6 / 25.0;
    if (device.architecture == "sm100") return 40.1 / 50.0;
    return std::nullopt;
}

int members_in_a_node(const cluster::Cluster& cluster, const std::vector<std::int32_t>& group) {
    std::map<int, int> count;
    int most = 1;
    for (std::int32_t device : group) most = std::max(most, ++count[cluster.node_of(cluster::DeviceId(device))]);
    return most;
}

}  // namespace

CommunicationCost::CommunicationCost(const schedule::Plan& plan, const cluster::Cluster& cluster, const CostConstants& constants)
    : plan_(plan), traits_(framework_traits(plan.framework, constants)), cluster_(cluster),
      collective_network_(cluster, nccl_nvlink_efficiency(cluster.instance.device), network_terms(cluster, constants, traits_)),
      transfer_network_(cluster, std::nullopt, network_terms(cluster, constants, traits_)) {}

std::vector<int> CommunicationCost::members(const Meeting& meeting, schedule::RankCoordinates at) const {
    if (meeting.tied_ranks.empty()) return process_group(plan_.layout, meeting.group, rank_of(plan_.layout, at), plan_.effective_shard_degree());
    std::vector<int> ranks;
    for (std::int32_t pipeline : meeting.tied_ranks) ranks.push_back(rank_of(plan_.layout, {at.data, at.tensor, pipeline}));
    return ranks;
}

std::vector<std::vector<std::int32_t>> CommunicationCost::groups(const Meeting& meeting) const {
    const schedule::ParallelLayout& layout = plan_.layout;
    std::vector<bool> seen(static_cast<std::size_t>(layout.ranks()), false);
    std::vector<std::vector<std::int32_t>> result;
    for (int data = 0; data < layout.data; ++data)
        for (int tensor = 0; tensor < layout.tensor; ++tensor) {
            const schedule::RankCoordinates at{data, tensor, meeting.pipeline};
            if (seen[static_cast<std::size_t>(rank_of(layout, at))]) continue;
            std::vector<std::int32_t>& devices = result.emplace_back();
            for (int member : members(meeting, at)) {
                seen[static_cast<std::size_t>(member)] = true;
                devices.push_back(device_of(member));
            }
        }
    return result;
}

// Ranks beyond the devices start again at the first (CPU ranks sharing cores).
std::int32_t CommunicationCost::device_of(int rank) const {
    const int used = cluster_.ranks_per_node, devices = cluster_.instance.devices;
    if (used > 0 && used < devices) rank = rank / used * devices + rank % used;
    return rank % cluster_.device_count();
}

int CommunicationCost::group_size(schedule::GroupKind group, int pipeline) const {
    return static_cast<int>(members({CollectiveKind::all_reduce, group, pipeline, {}}, {0, 0, pipeline}).size());
}

// A round of a ring moves one piece from every member to the next; all rounds are alike, so one is priced and multiplied: 2(n-1) for all-reduce, n-1 for
// all-gather and reduce-scatter (nccl-tests, doc/PERFORMANCE.md). Members do not wait for each other between rounds: a piece pays the latency of every hop it
// makes, of which only one a node is slow, so the mean counts (as in NCCL's own model: nInter slow steps, the rest fast). A broadcast is a pipelined chain: n-1
// hops of latency, every byte over every link once.
LinearCost CommunicationCost::ring(CollectiveKind kind, const std::vector<std::vector<std::int32_t>>& groups) {
    std::vector<Flow> flows;
    const double n = static_cast<double>(groups.front().size());
    const double piece = kind == CollectiveKind::broadcast ? 1.0 : 1.0 / n;
    for (const std::vector<std::int32_t>& group : groups)
        for (const Ring& ring : rings(cluster_, group))
            for (std::size_t i = 0; i < ring.devices.size(); ++i)
                flows.push_back({ring.devices[i], ring.devices[(i + 1) % ring.devices.size()], ring.share * piece});
    const LinearCost round{collective_network_.mean_latency(flows), collective_network_.price(flows).seconds_per_byte};
    switch (kind) {
        case CollectiveKind::all_reduce: return round * (2 * (n - 1));
        case CollectiveKind::all_gather:
        case CollectiveKind::reduce_scatter: return round * (n - 1);
        case CollectiveKind::broadcast: return {round.latency * (n - 1), round.seconds_per_byte};
        case CollectiveKind::all_to_all: break;
    }
    // Round k of an all-to-all: member i sends its k-th next member that one's part.
    LinearCost total;
    for (std::size_t k = 1; k < groups.front().size(); ++k) {
        flows.clear();
        for (const std::vector<std::int32_t>& group : groups)
            for (std::size_t i = 0; i < group.size(); ++i) flows.push_back({group[i], group[(i + k) % group.size()], 1.0 / n});
        total += collective_network_.price(flows);
    }
    return total;
}

const std::vector<CommunicationCost::Candidate>& CommunicationCost::candidates(const Meeting& meeting) {
    const CollectiveKind kind = meeting.kind;
    const auto [entry, is_new] = candidates_.try_emplace(meeting);
    std::vector<Candidate>& result = entry->second;
    if (!is_new) return result;
    const std::vector<std::vector<std::int32_t>> instances = groups(meeting);
    const int size = static_cast<int>(instances.front().size());
    const int ranks_per_node = members_in_a_node(cluster_, instances.front());
    for (const schedule::CollectiveAlgorithm& algorithm : schedule::collective_algorithms()) {
        if (algorithm.name == "ring" || !algorithm.supports(kind, size, ranks_per_node)) continue;
        // Rings in rounds of explicit transfers would be quadratic in the group; other algorithms have few rounds. Beyond this size only the ring is
        // considered.
        constexpr int largest_group_in_rounds = 512;
        if (size > largest_group_in_rounds) continue;
        const schedule::Rounds rounds = algorithm.rounds(kind, size, ranks_per_node);
        LinearCost total;
        std::vector<Flow> flows;
        for (const std::vector<schedule::Transfer>& round : rounds.rounds) {
            flows.clear();
            for (const std::vector<std::int32_t>& members : instances)
                for (const schedule::Transfer& transfer : round)
                    flows.push_back({members[static_cast<std::size_t>(transfer.from)], members[static_cast<std::size_t>(transfer.to)],
                                     static_cast<double>(transfer.count) / rounds.pieces});
            total += collective_network_.price(flows);
        }
        result.push_back({algorithm.name, total});
    }
    result.push_back({"ring", ring(kind, instances)});
    return result;
}

const CommunicationCost::Candidate& CommunicationCost::choice(const Meeting& meeting, core::Bytes bytes) {
    const std::vector<Candidate>& all = candidates(meeting);
    std::string wanted = plan_.collective;
    if (wanted == "auto" && !cluster_.instance.device.has_concurrent_streams) {
        // The CPU executor performs what the selector names; NCCL takes the fastest of what it knows.
        std::vector<std::int32_t> devices;
        for (int rank : members(meeting, {0, 0, meeting.pipeline})) devices.push_back(device_of(rank));
        wanted = schedule::select_collective(wanted, meeting.kind, static_cast<int>(devices.size()), members_in_a_node(cluster_, devices), bytes).name;
    }
    const Candidate* best = nullptr;
    for (const Candidate& candidate : all) {
        if (candidate.name == wanted) return candidate;
        if (!best || candidate.cost.of(bytes) < best->cost.of(bytes)) best = &candidate;
    }
    if (wanted == "auto") return *best;
    return all.back();  // the named algorithm does not do this kind: ring does
}

core::Seconds CommunicationCost::collective(CollectiveKind kind, schedule::GroupKind group, core::Bytes bytes, int pipeline,
                                            const std::vector<std::int32_t>& tied_ranks) {
    const Meeting meeting{kind, group, pipeline, tied_ranks};
    const auto [entry, is_new] = prices_.try_emplace(std::pair(meeting, bytes.value));
    if (is_new && members(meeting, {0, 0, pipeline}).size() > 1) entry->second = base_latency(cluster_.instance.device) + choice(meeting, bytes).cost.of(bytes);
    return entry->second;
}

core::Seconds CommunicationCost::broadcasts_of_owners(int pipeline) const {
    const double owners = group_size(schedule::GroupKind::shard, pipeline);
    return traits_.broadcast_step * (owners * owners);
}

std::string CommunicationCost::algorithm(CollectiveKind kind, schedule::GroupKind group, core::Bytes bytes, int pipeline) {
    return choice({kind, group, pipeline, {}}, bytes).name;
}

core::Seconds CommunicationCost::transfer(int from, int to, core::Bytes bytes, schedule::PayloadKind payload) {
    const auto [entry, is_new] = transfers_.try_emplace(std::pair(from, to));
    if (is_new) {
        const schedule::ParallelLayout& layout = plan_.layout;
        std::vector<Flow> flows;
        for (int data = 0; data < layout.data; ++data)
            for (int tensor = 0; tensor < layout.tensor; ++tensor)
                flows.push_back({device_of(rank_of(layout, {data, tensor, from})), device_of(rank_of(layout, {data, tensor, to})), 1.0});
        entry->second = transfer_network_.price(flows);
    }
    const bool is_scattered = payload == schedule::PayloadKind::activation ? traits_.scatters_activations : traits_.scatters_gradients;
    return entry->second.of(is_scattered ? bytes / static_cast<double>(plan_.layout.tensor) : bytes);
}

}  // namespace sim
