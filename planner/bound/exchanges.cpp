// What replicas, shards and stages exchange, at least.
#include <algorithm>
#include <map>
#include <optional>

#include "planner/bound/caches.h"
#include "sim/cost/collective/nccl.h"

namespace planner {

using schedule::CollectiveKind;
using schedule::GroupKind;

// The least of what crosses any boundary between units, over the links of each between stages.
const Bounds::Sends& Bounds::sends(const schedule::Plan& plan, const schedule::Schedule& order) {
    const auto [entry, is_new] = caches_of(plan).sends.try_emplace(
        {&order, plan.micro_batch, plan.sequence_parallel});  // the order knows how often each passes
    Sends& sends = entry->second;
    if (!is_new) return sends;
    const core::Bytes bytes = stages_.smallest_boundary(plan);
    sim::CommunicationCost& communication = communication_of(plan);
    const auto least = [&](int from_stage, int to_stage, schedule::PayloadKind payload) {
        std::optional<core::Seconds> time;
        for (int direction = 0; direction < order.directions; ++direction) {
            const int from = schedule::rank_of_stage(order, from_stage, direction),
                      to = schedule::rank_of_stage(order, to_stage, direction);
            const core::Seconds taken = from == to ? core::Seconds(0)
                                                   : communication.transfer(from, to, bytes, payload) +
                                                         communication.assembly(to, bytes, payload);
            time = time ? std::min(*time, taken) : taken;
        }
        return *time;
    };
    sends.resize(order.stages);
    for (int s = 0; s + 1 < order.stages; ++s) {
        sends[s].forward = least(s, s + 1, schedule::PayloadKind::activation);
        sends[s + 1].backward = least(s + 1, s, schedule::PayloadKind::activation_gradient);
    }
    return sends;
}

// Replicas of whole nodes lie alike at every pipeline coordinate, as nodes do.
int Bounds::unlike_replicas(const schedule::Plan& plan) const {
    // Plans that leave devices idle may have fewer coordinates than that.
    return std::min(sim::unlike_places(plan.layout, cluster_), plan.layout.pipeline);
}

Bounds::Places Bounds::places_of(const schedule::Plan& plan, int pipeline_rank) const {
    return pipeline_rank == any_place ? Places{0, unlike_replicas(plan)}
                                      : Places{pipeline_rank, pipeline_rank + 1};
}

const Bounds::Traffic& Bounds::traffic(const schedule::Plan& plan, model::OperatorRange stage,
                                       int pipeline_rank) {
    const int rank = pipeline_rank == any_place ? any_place : pipeline_rank % unlike_replicas(plan);
    const model::OperatorRange like = stages_.first_like(stage);
    const auto [entry, is_new] =
        caches_of(plan).traffic.try_emplace({like.begin, like.end, rank, plan.sequence_parallel,
                                             static_cast<int>(plan.sharding), plan.effective_shard_degree()});
    if (is_new) entry->second = traffic_of(plan, like, rank);
    return entry->second;
}

core::Seconds Bounds::time_of_collective(const schedule::Plan& plan, CollectiveKind kind, GroupKind group,
                                         core::Bytes bytes, int pipeline_rank) {
    sim::CommunicationCost& communication = communication_of(plan);
    const auto [first, end] = places_of(plan, pipeline_rank);
    core::Seconds least = communication.collective(kind, group, bytes, first);
    for (int place = first + 1; place < end; ++place)
        least = std::min(least, communication.collective(kind, group, bytes, place));
    return least;
}

// Bucket by bucket, as the data stream takes them one after the other.
Bounds::Traffic Bounds::traffic_of(const schedule::Plan& plan, model::OperatorRange stage,
                                   int pipeline_rank) {
    sim::CommunicationCost& communication = communication_of(plan);
    const core::Bytes element = core::size_of(plan.precision.gradients),
                      stored = core::size_of(plan.precision.parameters);
    Traffic traffic;
    for (const StageCollection::Bucket& bucket : stages_.buckets(plan, stage)) {
        schedule::ParameterBucket described;
        described.is_expert = bucket.is_expert;
        const schedule::BucketGroups groups = schedule::groups_of(plan.layout, described);
        if (groups.size == 1) continue;
        const auto price = [&](CollectiveKind kind, GroupKind group, core::Bytes bytes) {
            return time_of_collective(plan, kind, group, bytes, pipeline_rank) * bucket.count;
        };
        const auto elements = double(bucket.elements);
        const int pieces = plan.pieces(bucket.is_expert);
        if (pieces == 1) {
            traffic.reduced += price(CollectiveKind::all_reduce, groups.members, element * elements);
            continue;
        }
        const GroupKind group = shard_group(plan, bucket.is_expert);
        // Hybrid sharding adds the pieces up over the replicas once a step.
        if (pieces < groups.size && !bucket.is_expert)
            traffic.reduced += price(CollectiveKind::all_reduce, groups.replica, element * elements / pieces);
        const core::Seconds scattered = price(CollectiveKind::reduce_scatter, group, element * elements),
                            gathered = price(CollectiveKind::all_gather, group, stored * elements);
        const auto crowd = [&](CollectiveKind kind, core::Bytes bytes, core::Seconds time) {
            const cluster::DeviceSpec& device = cluster_.instance.device;
            const auto share_of = [&](int rank) {
                return !sim::has_nccl(device)
                           ? 1.0
                           : communication.choice(kind, group, bytes, rank).multiprocessors /
                                 sim::nccl_multiprocessors(device);
            };
            const auto [first, end] = places_of(plan, pipeline_rank);
            double least = share_of(first);
            for (int place = first; place < end; ++place) {
                least = std::min(least, share_of(place));
                traffic.largest_share = std::max(traffic.largest_share, share_of(place));
            }
            traffic.crowding += time * least;
        };
        if (plan.shards(schedule::Sharding::gradients))
            crowd(CollectiveKind::reduce_scatter, element * elements, scattered);
        if (plan.shards(schedule::Sharding::parameters))
            crowd(CollectiveKind::all_gather, stored * elements, gathered * 2);
        (plan.shards(schedule::Sharding::gradients) ? traffic.scattered : traffic.reduced) += scattered;
        (plan.shards(schedule::Sharding::parameters) ? traffic.gathered : traffic.after_update) += gathered;
    }
    return traffic;
}

// Copies on several ranks are summed over these once a step, of sharded gradients the shard, and whole ones
// over the replicas after that.
std::vector<core::Seconds> Bounds::tied_reductions(const schedule::Plan& plan,
                                                   const schedule::Schedule& order,
                                                   const std::vector<StageCollection::TiedCopies>& tied) {
    std::vector<core::Seconds> times(order.ranks);
    if (order.directions > 1) return times;
    sim::CommunicationCost& communication = communication_of(plan);
    const int pieces = plan.pieces(false);
    const bool is_sharded = scatters_every_micro_batch(plan);
    for (const StageCollection::TiedCopies& copies : tied)
        for (const std::int32_t rank : copies.ranks) {
            const core::Bytes whole = core::size_of(plan.precision.gradients) * copies.elements;
            times[rank] += communication.collective(CollectiveKind::all_reduce, GroupKind::tied_stages,
                                                    is_sharded ? whole / pieces : whole, rank, copies.ranks);
            if (plan.layout.data > 1 && !is_sharded)
                times[rank] += communication.collective(
                    pieces == 1 ? CollectiveKind::all_reduce : CollectiveKind::reduce_scatter,
                    pieces == 1 ? GroupKind::data : shard_group(plan, false), whole, rank);
        }
    return times;
}

std::vector<core::Seconds> Bounds::tied_reductions(const schedule::Plan& plan,
                                                   const schedule::Schedule& order,
                                                   const std::vector<model::OperatorRange>& ranges) {
    return tied_reductions(plan, order, stages_.tied_copies(plan, order, ranges));
}

core::Seconds Bounds::data_parallel_time(const schedule::Plan& plan, const schedule::Schedule& order,
                                         const std::vector<model::OperatorRange>& ranges,
                                         const std::vector<core::Seconds>& tied) {
    // A segment of a sequence is a micro-batch of its own.
    const double passes = double(plan.micro_batches) * plan.passes_per_micro_batch();
    std::vector<core::Seconds> streams(order.ranks);
    for (int s = 0; s < order.stages; ++s) {
        const int rank = schedule::rank_of_stage(order, s);
        const Traffic& of_stage = traffic(plan, ranges[s], rank);
        streams[rank] +=
            (of_stage.gathered * 2 + of_stage.scattered) * passes + of_stage.reduced + of_stage.after_update;
    }
    for (std::size_t rank = 0; rank < tied.size(); ++rank) streams[rank] += tied[rank];
    return *std::max_element(streams.begin(), streams.end());
}

}  // namespace planner
