// Algorithms priced by the rounds of their transfers: where there is no NCCL, or a plan names them.
#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "cluster/node.h"
#include "sim/cost/collective/collective.h"

namespace sim {

using schedule::CollectiveKind;

// Rounds one after another, each as long as its slowest transfer and its busiest link.
void CommunicationCost::add_rounds(const schedule::CollectiveAlgorithm& algorithm,
                                   const Participants& participants, const Groups& groups,
                                   std::vector<Candidate>& result) {
    const int ranks_per_node = cluster::most_devices_of_a_node(cluster_, groups.devices.front());
    if (!algorithm.supports(participants.kind, groups.size(), ranks_per_node)) return;
    const schedule::Rounds rounds = algorithm.rounds(participants.kind, groups.size(), ranks_per_node);
    LinearCost total;
    std::vector<Flow> flows, all;
    for (const std::vector<schedule::Transfer>& round : rounds.rounds) {
        flows.clear();
        for (const std::vector<std::int32_t>& members : groups.devices)
            for (const schedule::Transfer& transfer : round)
                flows.push_back({members[transfer.from], members[transfer.to],
                                 static_cast<double>(transfer.count) / rounds.pieces});
        total += collective_network_.price(flows);
        all.insert(all.end(), flows.begin(), flows.end());
    }
    Candidate candidate{algorithm.name, "", total.latency};
    candidate.seconds_per_byte = total.seconds_per_byte;
    candidate.links = collective_network_.links(all);
    if (has_nccl(cluster_.instance.device))
        candidate.multiprocessors = nccl_multiprocessors(cluster_.instance.device);
    result.push_back(std::move(candidate));
}

// The same of a ring without listing its rounds, which would fill the memory: equal rounds are priced once,
// others one by one.
void CommunicationCost::add_large_ring(const Participants& participants, const Groups& groups,
                                       std::vector<Candidate>& result) {
    const std::int32_t n = groups.size();
    LinearCost total;
    std::vector<Flow> flows;
    std::map<std::int32_t, double> busy;
    const auto add = [&](int times, const auto& transfers_of_group) {
        flows.clear();
        for (const std::vector<std::int32_t>& members : groups.devices) transfers_of_group(members);
        total += collective_network_.price(flows) * times;
        for (const LinkShare& link : collective_network_.links(flows)) busy[link.link] += link.busy * times;
    };
    const auto flow = [&](const std::vector<std::int32_t>& members, std::int32_t from, std::int32_t to) {
        flows.push_back({members[from], members[to], 1.0 / n});
    };
    // Ranks from `first` on to their right-hand neighbours.
    const auto neighbours = [&](std::int32_t first, std::int32_t senders) {
        return [&, first, senders](const std::vector<std::int32_t>& members) {
            for (std::int32_t r = first; r < first + senders; ++r) flow(members, r, (r + 1) % n);
        };
    };
    switch (participants.kind) {
        case CollectiveKind::reduce_scatter:
        case CollectiveKind::all_gather: add(n - 1, neighbours(0, n)); break;
        case CollectiveKind::all_reduce: add(2 * (n - 1), neighbours(0, n)); break;
        case CollectiveKind::broadcast:
            // A chain of n pieces: in round t those ranks send whose piece t - r there is.
            for (std::int32_t t = 0; t < 2 * (n - 1); ++t) {
                const std::int32_t first = std::max(0, t - n + 1), last = std::min(t, n - 2);
                add(1, neighbours(first, last - first + 1));
            }
            break;
        case CollectiveKind::all_to_all:
            for (std::int32_t round = 0; round < n; ++round)
                add(1, [&](const std::vector<std::int32_t>& members) {
                    for (std::int32_t r = 0; r < n; ++r)
                        if (const std::int32_t partner = (round - r + n) % n; partner != r)
                            flow(members, r, partner);
                });
            break;
        case CollectiveKind::rotate:
            add(1, [&](const std::vector<std::int32_t>& members) {
                for (std::int32_t r = 0; r < n; ++r) flows.push_back({members[r], members[(r + 1) % n], 1.0});
            });
            break;
    }
    Candidate candidate{schedule::ring_algorithm().name, "", total.latency};
    candidate.seconds_per_byte = total.seconds_per_byte;
    for (const auto& [link, time] : busy) candidate.links.push_back({link, time});
    result.push_back(std::move(candidate));
}

}  // namespace sim
