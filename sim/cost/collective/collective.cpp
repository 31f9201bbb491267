#include "sim/cost/collective/collective.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>

#include "cluster/node.h"
#include "core/errors.h"
#include "core/index/integers.h"
#include "schedule/program/exchange_signature.h"
#include "sim/cost/collective/known_candidates.h"
#include "sim/cost/collective/library.h"
#include "sim/cost/collective/repeated_groups.h"
#include "sim/cost/framework/framework_lookup.h"

namespace sim {

using schedule::CollectiveKind;

namespace {

// Do the groups exchange what belongs to a pass through the model?
bool is_inside_model(schedule::GroupKind group) {
    return group == schedule::GroupKind::tensor || group == schedule::GroupKind::tied_stages ||
           group == schedule::GroupKind::context || group == schedule::GroupKind::expert ||
           group == schedule::GroupKind::tokens;
}

// The time of an exchange that ranks of the plan were seen to take; nothing where none was measured. Its name
// is made only where there are any.
template <class Signature>
std::optional<core::Seconds> measured_exchange(const cluster::Cluster& cluster, const Signature& signature) {
    const std::vector<cluster::MeasuredOperator>& measured = cluster.instance.device.measured_operators;
    if (measured.empty()) return std::nullopt;
    const std::string name = signature();
    const auto found =
        std::find_if(measured.begin(), measured.end(),
                     [&](const cluster::MeasuredOperator& one) { return one.signature == name; });
    return found == measured.end() ? std::nullopt : std::optional(found->forward);
}

}  // namespace

int unlike_places(const schedule::ParallelLayout& layout, const cluster::Cluster& cluster) {
    const int of_a_node = cluster::ranks_of_a_node(cluster);
    const bool repeats = layout.order.starts_with('P') && layout.ranks() <= of_a_node * cluster.nodes;
    return repeats ? of_a_node / std::gcd(of_a_node, layout.tensor * layout.data) : layout.pipeline;
}

CommunicationCost::CommunicationCost(const schedule::Plan& plan, const cluster::Cluster& cluster,
                                     const CostConstants& constants, KnownCandidates& known)
    : CommunicationCost(plan, cluster, constants) {
    known_ = &known;
}

CommunicationCost::CommunicationCost(const schedule::Plan& plan, const cluster::Cluster& cluster,
                                     const CostConstants& constants)
    : plan_(plan),
      traits_(framework_traits(plan.framework, constants)),
      list_entry_(core::microseconds(traits_.list_operations * constants.dispatch_eager_us *
                                     host_time(cluster.instance.device.architecture, constants))),
      most_live_elements_(framework_memory(plan.framework, constants).live_parameter_elements),
      cluster_(cluster),
      unlike_places_(unlike_places(plan.layout, cluster)),
      collective_network_(cluster, nccl_nvlink_efficiency(cluster.instance.device),
                          network_terms(cluster, constants, traits_)),
      transfer_network_(cluster, std::nullopt, network_terms(cluster, constants, traits_)) {}

CommunicationCost::Participants CommunicationCost::first_like(Participants participants) const {
    if (participants.tied_ranks.empty() && participants.group != schedule::GroupKind::tied_stages)
        participants.pipeline = first_like(participants.pipeline);
    return participants;
}

int CommunicationCost::nodes_before(int pipeline) const {
    return (pipeline - first_like(pipeline)) * plan_.layout.tensor * plan_.layout.data /
           cluster::ranks_of_a_node(cluster_);
}

std::vector<int> CommunicationCost::members(const Participants& participants,
                                            schedule::RankCoordinates at) const {
    if (participants.tied_ranks.empty())
        return process_group(plan_.layout, participants.group, rank_of(plan_.layout, at),
                             plan_.effective_shard_degree());
    std::vector<int> ranks;
    for (std::int32_t pipeline : participants.tied_ranks)
        ranks.push_back(rank_of(plan_.layout, {at.data, at.tensor, pipeline}));
    return ranks;
}

Groups CommunicationCost::groups(const Participants& participants) const {
    const schedule::ParallelLayout& layout = plan_.layout;
    std::vector<bool> seen(layout.ranks(), false);
    Groups result;
    for (int data = 0; data < layout.data; ++data)
        for (int tensor = 0; tensor < layout.tensor; ++tensor) {
            const schedule::RankCoordinates at{data, tensor, participants.pipeline};
            if (seen[rank_of(layout, at)]) continue;
            std::vector<std::int32_t>& devices = result.devices.emplace_back();
            for (int member : members(participants, at)) {
                seen[member] = true;
                devices.push_back(device_of(member));
            }
        }
    return result;
}

// Ranks beyond the devices start again at the first (CPU ranks sharing cores).
std::int32_t CommunicationCost::device_of(int rank) const {
    return cluster::node_of_rank(cluster_, rank) * cluster_.instance.devices +
           rank % cluster::ranks_of_a_node(cluster_);
}

int CommunicationCost::group_size(schedule::GroupKind group, int pipeline) const {
    const auto [size, is_new] = sizes_.try_emplace(std::pair(group, pipeline));
    if (is_new)
        size->second =
            core::count_of(members({CollectiveKind::all_reduce, group, pipeline, {}}, {0, 0, pipeline}));
    return size->second;
}

std::vector<Candidate> CommunicationCost::candidates_of(const Participants& participants,
                                                        const Groups& groups) {
    std::vector<Candidate> result;
    const bool uses_nccl = has_nccl(cluster_.instance.device);
    // A library other than NCCL serves the gradients and parameters of data parallelism; groups inside a
    // model stay with NCCL.
    const Library* library =
        is_inside_model(participants.group) ? nullptr : find_library(plan_.communication);
    if (uses_nccl && library && groups.size() > 1)
        return library->candidates({cluster_, collective_network_, transfer_network_}, participants.kind,
                                   groups);
    if (uses_nccl) result = nccl_candidates(cluster_, collective_network_, participants.kind, groups);
    // Algorithms beyond NCCL's, when a plan names them; and everything where there is no NCCL. A ring in
    // rounds of explicit transfers is quadratic in the group, so large groups take no other algorithm than
    // NCCL's, or without NCCL the ring.
    constexpr int largest_group_in_rounds = 512;
    for (const schedule::CollectiveAlgorithm& algorithm : schedule::collective_algorithms()) {
        const bool is_known = std::any_of(result.begin(), result.end(), [&](const Candidate& candidate) {
            return candidate.algorithm == algorithm.name;
        });
        if (is_known || groups.size() > largest_group_in_rounds ||
            (uses_nccl && plan_.collective != algorithm.name))
            continue;
        add_rounds(algorithm, participants, groups, result);
    }
    if (result.empty() && groups.size() > largest_group_in_rounds)
        add_large_ring(participants, groups, result);
    core::require(!result.empty(), "every collective can be carried out in some way");
    return result;
}

const CommunicationCost::Candidates& CommunicationCost::candidates(const Participants& participants) {
    const auto [entry, is_new] = candidates_.try_emplace(participants);
    if (!is_new) return entry->second;
    std::optional<GroupPattern> pattern;
    if (known_ && unlike_places_ == 1 && participants.pipeline == 0 && participants.tied_ranks.empty())
        pattern =
            pattern_of(plan_, participants.kind, participants.group, cluster::ranks_of_a_node(cluster_));
    if (pattern) {
        pattern->is_inside_model = is_inside_model(participants.group);
        entry->second.of_first = known_->of(*pattern, [&] {
            Groups first = pattern->groups();
            for (std::vector<std::int32_t>& group : first.devices)
                for (std::int32_t& member : group) member = device_of(member);
            return candidates_without_links(participants, find_repeated(cluster_, std::move(first)).first);
        });
        return entry->second;
    }
    RepeatedGroups repeated = find_repeated(cluster_, groups(participants));
    entry->second.of_first = known_ ? candidates_without_links(participants, repeated.first)
                                    : candidates_of(participants, repeated.first);
    entry->second.nodes_behind = std::move(repeated.nodes_behind);
    return entry->second;
}

std::vector<Candidate> CommunicationCost::candidates_without_links(const Participants& participants,
                                                                   const Groups& groups) {
    std::vector<Candidate> made = candidates_of(participants, groups);
    for (Candidate& candidate : made) {
        candidate.bytes_of_a_group = bytes_of_a_group(candidate);
        candidate.links = std::vector<LinkShare>();  // and their memory
    }
    return made;
}

const Candidate& CommunicationCost::choice_of(CollectiveKind kind, schedule::GroupKind group,
                                              core::Bytes bytes, int rank,
                                              const std::vector<std::int32_t>& tied_ranks) {
    const schedule::RankCoordinates at = coordinates_of(plan_.layout, rank);
    const Participants participants{kind, group, at.pipeline, tied_ranks};
    const Candidate& chosen = choose(participants, bytes);
    const auto [entry, is_new] =
        own_candidates_.try_emplace(std::pair(participants, leader(group, rank, tied_ranks)));
    if (is_new) {
        Groups own;
        std::vector<std::int32_t>& devices = own.devices.emplace_back();
        for (int member : members(participants, at)) devices.push_back(device_of(member));
        entry->second = candidates_of(participants, own);
        for (Candidate& candidate : entry->second)
            if (candidate.has_phases)
                for (const Candidate& whole : candidates(participants).of_first)
                    if (whole.algorithm == candidate.algorithm)
                        candidate.seconds_per_byte = whole.seconds_per_byte;
    }
    for (const Candidate& candidate : entry->second)
        if (candidate.algorithm == chosen.algorithm && candidate.protocol == chosen.protocol)
            return candidate;
    return entry->second.front();
}

const CommunicationCost::Transfer& CommunicationCost::transfer_of(int rank, int to) {
    const auto [entry, is_new] = own_transfers_.try_emplace(std::pair(rank, to));
    if (is_new) {
        schedule::RankCoordinates at = coordinates_of(plan_.layout, rank);
        at.pipeline = to;
        const Flow flow{device_of(rank), device_of(rank_of(plan_.layout, at)), 1.0};
        entry->second = {transfer_network_.price({&flow, 1}), transfer_network_.links({&flow, 1})};
    }
    return entry->second;
}

int CommunicationCost::leader(schedule::GroupKind group, int rank,
                              const std::vector<std::int32_t>& tied_ranks) const {
    const std::vector<int> ranks =
        members({CollectiveKind::all_reduce, group, 0, tied_ranks}, coordinates_of(plan_.layout, rank));
    return *std::min_element(ranks.begin(), ranks.end());
}

const Candidate& CommunicationCost::choose(const Participants& participants, core::Bytes bytes) {
    const std::vector<Candidate>& all = candidates(participants).of_first;
    std::string wanted = plan_.collective;
    if (wanted == "auto" && !has_nccl(cluster_.instance.device)) {
        // The CPU executor performs the algorithm that the selector names; NCCL the fastest of its own.
        std::vector<std::int32_t> devices;
        for (int rank : members(participants, {0, 0, participants.pipeline}))
            devices.push_back(device_of(rank));
        wanted = schedule::select_collective(wanted, participants.kind, core::count_of(devices),
                                             cluster::most_devices_of_a_node(cluster_, devices), bytes)
                     .name;
    }
    // An algorithm that does not do this kind of collective leaves the choice to the library.
    const bool has_wanted = std::any_of(
        all.begin(), all.end(), [&](const Candidate& candidate) { return candidate.algorithm == wanted; });
    const Candidate* best = nullptr;
    for (const Candidate& candidate : all) {
        if (has_wanted && candidate.algorithm != wanted) continue;
        if ((candidate.up_to && bytes > *candidate.up_to) || (candidate.above && bytes <= *candidate.above))
            continue;
        if (!best || time_of(candidate, bytes).total() < time_of(*best, bytes).total()) best = &candidate;
    }
    core::require(best != nullptr, "some way takes any payload");
    return *best;
}

const Candidate& CommunicationCost::choice(CollectiveKind kind, schedule::GroupKind group, core::Bytes bytes,
                                           int pipeline, const std::vector<std::int32_t>& tied_ranks) {
    const Participants participants{kind, group, pipeline, tied_ranks}, like = first_like(participants);
    const Candidate& chosen = choose(like, bytes);
    const std::vector<int>& nodes_behind = candidates(like).nodes_behind;
    if (known_ || (like.pipeline == pipeline && nodes_behind.empty())) return chosen;
    const auto [entry, is_new] = moved_.try_emplace(std::pair(participants, &chosen));
    if (is_new) {
        entry->second = chosen;
        entry->second.links = spread(collective_network_, chosen.links, nodes_behind);
        if (like.pipeline != pipeline)
            entry->second.links =
                collective_network_.moved(std::move(entry->second.links), nodes_before(pipeline));
    }
    return entry->second;
}

core::Seconds CommunicationCost::collective(CollectiveKind kind, schedule::GroupKind group, core::Bytes bytes,
                                            int pipeline, const std::vector<std::int32_t>& tied_ranks) {
    // What was measured is of these very ranks.
    Participants participants{kind, group, pipeline, tied_ranks};
    if (cluster_.instance.device.measured_operators.empty()) participants = first_like(participants);
    const auto [entry, is_new] = prices_.try_emplace(std::pair(participants, bytes.value));
    const auto members = [&] {
        return tied_ranks.empty() ? group_size(group, pipeline) : core::count_of(tied_ranks);
    };
    if (!is_new || members() <= 1) return entry->second;
    const std::optional<core::Seconds> measured = measured_exchange(
        cluster_, [&] { return schedule::collective_signature(kind, group, pipeline, tied_ranks, bytes); });
    return entry->second =
               measured ? *measured : time_of(choose(first_like(participants), bytes), bytes).total();
}

core::Seconds CommunicationCost::broadcasts_of_owners(int pipeline) {
    if (!traits_.broadcasts_parameters) return {};
    const double owners = group_size(schedule::GroupKind::shard, pipeline);
    return collective(CollectiveKind::broadcast, schedule::GroupKind::shard, core::Bytes(0), pipeline) *
           owners;
}

core::Seconds CommunicationCost::gather_overhead(schedule::GroupKind group, int pipeline,
                                                 const schedule::ParameterBucket& layer,
                                                 core::Seconds whole) {
    if (!traits_.gathers_by_tensor) return {};
    std::int64_t tensors = 0, end = layer.elements;
    for (std::size_t i = layer.offsets.size(); i-- > 0; end = layer.offsets[i])
        tensors += end - layer.offsets[i] >= traits_.least_sharded_elements;
    const core::Seconds latency = collective(CollectiveKind::all_gather, group, core::Bytes(0), pipeline);
    const core::Seconds entries = list_entry_ * group_size(group, pipeline);
    const core::Seconds all = latency * static_cast<double>(std::max<std::int64_t>(tensors - 1, 0)) +
                              entries * static_cast<double>(tensors);
    // A layer that runs again and is larger than what stays gathered is gathered a third time for its
    // backward pass: half of that with each of the Program's two.
    const bool is_released = plan_.recompute == schedule::Recompute::full && most_live_elements_ > 0 &&
                             static_cast<double>(layer.elements) > most_live_elements_;
    constexpr double third_of_two = 0.5;
    return is_released ? all * (1 + third_of_two) + whole * third_of_two : all;
}

std::string CommunicationCost::algorithm(CollectiveKind kind, schedule::GroupKind group, core::Bytes bytes,
                                         int pipeline) {
    const Candidate& taken = choose({kind, group, pipeline, {}}, bytes);
    return taken.protocol.empty() ? taken.algorithm : taken.algorithm + ' ' + taken.protocol;
}

const CommunicationCost::Transfer& CommunicationCost::transfer_between(int from, int to) {
    const auto [entry, is_new] = transfers_.try_emplace(std::pair(from, to));
    if (const int lower = std::min(from, to); is_new && first_like(lower) != lower) {
        const int before = lower - first_like(lower);
        const Transfer& first = transfer_between(from - before, to - before);
        entry->second = {first.cost, transfer_network_.moved(first.links, nodes_before(lower))};
    } else if (is_new) {
        const schedule::ParallelLayout& layout = plan_.layout;
        Groups pairs;
        for (int data = 0; data < layout.data; ++data)
            for (int tensor = 0; tensor < layout.tensor; ++tensor)
                pairs.devices.push_back({device_of(rank_of(layout, {data, tensor, from})),
                                         device_of(rank_of(layout, {data, tensor, to}))});
        const RepeatedGroups repeated = find_repeated(cluster_, std::move(pairs));
        std::vector<Flow> flows;
        for (const std::vector<std::int32_t>& pair : repeated.first.devices)
            flows.push_back({pair.front(), pair.back(), 1.0});
        entry->second.cost = transfer_network_.price(flows);
        if (!known_)
            entry->second.links =
                spread(transfer_network_, transfer_network_.links(flows), repeated.nodes_behind);
    }
    return entry->second;
}

core::Bytes CommunicationCost::sent(core::Bytes bytes, schedule::PayloadKind payload) const {
    return scatters(payload) ? bytes / static_cast<double>(plan_.layout.tensor) : bytes;
}

bool CommunicationCost::scatters(schedule::PayloadKind payload) const {
    // With sequence parallelism a rank has a share of its own already.
    return plan_.layout.tensor > 1 && !plan_.sequence_parallel &&
           (payload == schedule::PayloadKind::activation ? traits_.scatters_activations
                                                         : traits_.scatters_gradients);
}

core::Seconds CommunicationCost::transfer(int from, int to, core::Bytes bytes,
                                          schedule::PayloadKind payload) {
    const std::optional<core::Seconds> measured =
        measured_exchange(cluster_, [&] { return schedule::transfer_signature(from, to, bytes); });
    return measured ? *measured : transfer_between(from, to).cost.of(sent(bytes, payload));
}

core::Seconds CommunicationCost::assembly(int at, core::Bytes bytes, schedule::PayloadKind payload) {
    return scatters(payload) ? collective(CollectiveKind::all_gather, schedule::GroupKind::tensor, bytes, at)
                             : core::Seconds(0);
}

}  // namespace sim
