// What bounds of the plans of one layout have in common, each found once; and what several parts of them ask.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <tuple>

#include "planner/bound/bounds.h"
#include "sim/cost/collective/collective.h"

namespace planner {

struct Bounds::Caches {
    struct Communication {
        schedule::Plan plan;  // the cost object refers to it
        std::unique_ptr<sim::CommunicationCost> cost;
    };
    std::map<std::tuple<int, schedule::Offload, bool>, Communication>
        communication;  // by shard degree, offload and sequence parallelism
    std::map<std::tuple<const schedule::Schedule*, int, RecomputationKey, int, int>, core::Seconds>
        after_passes;  // by order, micro-batch, recomputation and sharding
    std::map<std::tuple<const schedule::Schedule*, int, bool>, Sends>
        sends;  // by order, micro-batch and sequence parallelism
    std::map<std::tuple<std::int32_t, std::int32_t, int, bool, int, int>, Traffic>
        traffic;  // by operators, pipeline rank, sequence parallelism and sharding
    std::map<std::tuple<int, RecomputationKey, bool, GradientHandling, int>, Whole>
        whole;  // by micro-batch, recomputation, sequence parallelism, gradients and parts of sequences
    std::optional<double> largest_unit;
    // Of passes, by micro-batch, recomputation, sequence parallelism, what becomes of gradients (some
    // reductions run beside them), stage, pipeline rank, passes of a micro-batch and which.
    std::map<
        std::tuple<int, RecomputationKey, bool, GradientHandling, std::int32_t, std::int32_t, int, int, int>,
        Collectives>
        collectives;

    sim::CommunicationCost& communication_of(const schedule::Plan& plan, const cluster::Cluster& cluster,
                                             const sim::CostConstants& constants,
                                             sim::KnownCandidates& known) {
        auto [entry, is_new] =
            communication.try_emplace({plan.effective_shard_degree(), plan.offload, plan.sequence_parallel});
        if (is_new) {
            entry->second.plan = plan;
            entry->second.cost =
                std::make_unique<sim::CommunicationCost>(entry->second.plan, cluster, constants, known);
        }
        return *entry->second.cost;
    }
};

// Do ranks exchange anything during a pass of a micro-batch?
inline bool exchanges_in_passes(const schedule::Plan& plan) {
    return plan.layout.tensor > 1 || plan.layout.context > 1 || plan.layout.expert > 1;
}

// Over which ranks the state of a bucket is divided.
inline schedule::GroupKind shard_group(const schedule::Plan& plan, bool is_expert) {
    if (is_expert) return schedule::GroupKind::expert_shard;
    return plan.effective_shard_degree() < plan.layout.data ? schedule::GroupKind::shard
                                                            : schedule::GroupKind::data;
}

inline bool scatters_every_micro_batch(const schedule::Plan& plan) {
    return plan.shards(schedule::Sharding::gradients) && plan.pieces(false) > 1;
}

}  // namespace planner
