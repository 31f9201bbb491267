// The price of communication on the topology: every instance of a collective at once, algorithm by algorithm,
// and pipeline transfers.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cluster/topology.h"
#include "core/units.h"
#include "schedule/collective/rounds.h"
#include "schedule/plan/layout.h"
#include "schedule/plan/plan.h"
#include "schedule/program/program.h"
#include "sim/cost/collective/candidate.h"
#include "sim/cost/collective/nccl.h"
#include "sim/cost/collective/network.h"

namespace sim {

class KnownCandidates;

// How many pipeline coordinates lie differently on nodes: coordinate r lies as r modulo that many does, on
// other nodes. All of them where nodes do not repeat along the pipeline.
int unlike_places(const schedule::ParallelLayout& layout, const cluster::Cluster& cluster);

// Prices are of all ranks at one pipeline coordinate working at the same time: their groups of one kind share
// links (eight data-parallel rings share four network cards). Other pipeline coordinates are not counted
// against them. Not thread-safe: one object an evaluation.
class CommunicationCost {
public:
    CommunicationCost(const schedule::Plan& plan, const cluster::Cluster& cluster,
                      const CostConstants& constants = {});
    // Choices and transfers tell times but not what they keep busy, which takes memory for every link of the
    // cluster. `known` holds what plans of this cluster share, and outlives it.
    CommunicationCost(const schedule::Plan& plan, const cluster::Cluster& cluster,
                      const CostConstants& constants, KnownCandidates& known);

    // `bytes` as in schedule::Instruction: all_reduce and reduce_scatter the full vector, all_gather the full
    // result, all_to_all and rotate what one member sends. `tied_ranks` (schedule::ParameterBucket) are the
    // pipeline coordinates that take part in a reduction over tied stages.
    core::Seconds collective(schedule::CollectiveKind kind, schedule::GroupKind group, core::Bytes bytes,
                             int pipeline, const std::vector<std::int32_t>& tied_ranks = {});
    // Latency of the broadcasts, one after another, by which the owners of shards return updated parameters.
    // Added once a step.
    core::Seconds broadcasts_of_owners(int pipeline);
    // What gathering a layer's sharded parameters takes beside one all-gather of its bytes (`whole`), where
    // they are gathered tensor by tensor; zero where a layer is gathered at once.
    core::Seconds gather_overhead(schedule::GroupKind group, int pipeline,
                                  const schedule::ParameterBucket& layer, core::Seconds whole);
    // From every rank at pipeline coordinate `from` to its counterpart at `to`.
    core::Seconds transfer(int from, int to, core::Bytes bytes,
                           schedule::PayloadKind payload = schedule::PayloadKind::activation);

    // All-gather among the receivers after a transfer of which every tensor-parallel rank sent its share
    // only.
    core::Seconds assembly(int at, core::Bytes bytes, schedule::PayloadKind payload);

    // Out to the memory of each rank's host or to disk, or back, all ranks at the same time.
    core::Seconds host_copy(core::Bytes bytes, bool loads, schedule::Offload where);
    // The same of so many bytes of parameters as a pass reads them, or of gradients, as the framework does
    // it.
    core::Seconds state_copy(core::Bytes bytes, bool loads);

    // The candidate chosen, for reports and for the clock: which links it keeps busy and for how long.
    // Lives as long as this object.
    const Candidate& choice(schedule::CollectiveKind kind, schedule::GroupKind group, core::Bytes bytes,
                            int pipeline, const std::vector<std::int32_t>& tied_ranks = {});
    // Of a transfer: the links it keeps busy for each byte, and its time.
    struct Transfer {
        LinearCost cost;
        std::vector<LinkShare> links;
    };
    const Transfer& transfer_between(int from, int to);
    // The same of one rank's own group, alone: with the algorithm that choice() takes.
    const Candidate& choice_of(schedule::CollectiveKind kind, schedule::GroupKind group, core::Bytes bytes,
                               int rank, const std::vector<std::int32_t>& tied_ranks = {});
    const Transfer& transfer_of(int rank, int to);
    // The lowest rank of the group that `rank` belongs to.
    int leader(schedule::GroupKind group, int rank, const std::vector<std::int32_t>& tied_ranks = {}) const;
    // Of `bytes` handed to transfer(), those each rank sends itself.
    core::Bytes sent(core::Bytes bytes, schedule::PayloadKind payload) const;
    bool scatters(schedule::PayloadKind payload) const;
    std::size_t link_count() const { return transfer_network_.link_count(); }
    // Of one group, over its most loaded link, for each byte of the payload.
    double bytes_of_a_group(const Candidate& candidate) const {
        return candidate.bytes_of_a_group > 0 ? candidate.bytes_of_a_group
                                              : collective_network_.most_bytes(candidate.links);
    }

    // Members of the group of that kind at that pipeline coordinate (1: no communication).
    int group_size(schedule::GroupKind group, int pipeline) const;
    // The name of the algorithm with the least time ("ring", ...), for reports.
    std::string algorithm(schedule::CollectiveKind kind, schedule::GroupKind group, core::Bytes bytes,
                          int pipeline);

private:
    // Participants: every group of that kind with a member at the pipeline coordinate.
    struct Participants {
        schedule::CollectiveKind kind;
        schedule::GroupKind group;
        int pipeline = 0;
        std::vector<std::int32_t> tied_ranks;
        auto operator<=>(const Participants&) const = default;
    };

    // Groups of the first pipeline coordinate whose groups are like these, on other nodes.
    Participants first_like(Participants participants) const;
    int first_like(int pipeline) const { return pipeline % unlike_places_; }
    // Between the coordinate and the first that is like it.
    int nodes_before(int pipeline) const;
    std::int32_t device_of(int rank) const;
    std::vector<int> members(const Participants& participants, schedule::RankCoordinates at) const;
    Groups groups(const Participants& participants) const;
    struct Candidates {
        std::vector<Candidate> of_first;  // links are of the first lot of groups (repeated_groups.h)
        std::vector<int> nodes_behind;    // of the other lots
    };
    const Candidates& candidates(const Participants& participants);
    // Without their links.
    std::vector<Candidate> candidates_without_links(const Participants& participants, const Groups& groups);
    void add_rounds(const schedule::CollectiveAlgorithm& algorithm, const Participants& participants,
                    const Groups& groups, std::vector<Candidate>& result);
    void add_large_ring(const Participants& participants, const Groups& groups,
                        std::vector<Candidate>& result);
    std::vector<Candidate> candidates_of(const Participants& participants, const Groups& groups);
    const Candidate& choose(const Participants& participants, core::Bytes bytes);

    const schedule::Plan& plan_;
    FrameworkTraits traits_;
    core::Seconds list_entry_;       // host time of one entry of a list that is gathered into
    double most_live_elements_ = 0;  // gathered parameters that stay for reuse; zero = no limit is known
    const cluster::Cluster& cluster_;
    int unlike_places_ = 1;
    Network collective_network_, transfer_network_;
    KnownCandidates* known_ = nullptr;                                  // null: links are kept
    mutable std::map<std::pair<schedule::GroupKind, int>, int> sizes_;  // of groups, by pipeline coordinate
    std::map<Participants, Candidates> candidates_;
    std::map<std::pair<Participants, const Candidate*>, Candidate> moved_;  // to other nodes, or to all
    std::map<std::pair<Participants, double>, core::Seconds> prices_;       // by bytes
    std::optional<LinearCost> host_copies_[2][2];  // to the host or to disk, out or back
    std::map<std::pair<int, int>, Transfer> transfers_, own_transfers_;
    std::map<std::pair<Participants, int>, std::vector<Candidate>>
        own_candidates_;  // by lowest rank of the group
};

}  // namespace sim
