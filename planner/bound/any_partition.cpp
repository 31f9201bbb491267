// Bounds of a plan whatever its partition, and of all its schedules.
#include <algorithm>
#include <cmath>
#include <optional>

#include "core/index/integers.h"
#include "planner/bound/caches.h"
#include "schedule/pipeline/registry.h"

namespace planner {

using schedule::CollectiveKind;
using schedule::GroupKind;

namespace {

// What a rank claims of the passes of all micro-batches through the whole model, `cost_of` each segment.
template <class CostOf>
core::Seconds even_share(const schedule::Plan& plan, CostOf cost_of) {
    core::Seconds device, host;
    for (int segment = 0; segment < plan.passes_per_micro_batch(); ++segment) {
        const StageCost cost = cost_of(segment);
        device += cost.forward.device + cost.backward.device;
        host += cost.forward.host + cost.backward.host;
    }
    return std::max(device, host) * (Bounds::claimed_share * plan.micro_batches / plan.layout.pipeline);
}

}  // namespace

// Prices of operators add up, so all stages together take what the model takes as one stage: on some rank at
// least its even share. Where the ranks of a stage are whole nodes, all stages exchange over the same links.
core::Seconds Bounds::time_of_work(const schedule::Plan& plan) {
    if (!has_priced_times(cluster_)) return core::Seconds(0);
    if (plan.recomputes_by_stage()) return time_of_work(with_nothing_again(plan));
    const model::OperatorRange all{0, core::count_of(stages_.graph().operators)};
    std::optional<core::Seconds> least;
    for (int rank = 0; rank < unlike_places(plan); ++rank) {
        const core::Seconds share =
            even_share(plan, [&](int segment) { return stage_cost(plan, all, rank, segment); });
        least = least ? std::min(*least, share) : share;
    }
    return *least;
}

core::Seconds Bounds::time_of_compute(const schedule::Plan& plan) {
    if (!has_priced_times(cluster_)) return core::Seconds(0);
    if (plan.recomputes_by_stage()) return time_of_compute(with_nothing_again(plan));
    const model::OperatorRange all{0, core::count_of(stages_.graph().operators)};
    return even_share(plan, [&](int segment) { return stages_.compute(plan, all, segment); });
}

const Bounds::Whole& Bounds::whole(const schedule::Plan& plan) {
    if (plan.recomputes_by_stage()) return whole(with_nothing_again(plan));
    const auto [entry, is_new] =
        caches_of(plan).whole.try_emplace({plan.micro_batch, recomputation_key(plan), plan.sequence_parallel,
                                           GradientHandling(plan), plan.passes_per_micro_batch()});
    Whole& whole = entry->second;
    if (!is_new) return whole;
    const auto price = [&](model::OperatorRange range, Whole& result) {
        std::optional<core::Seconds> forward, backward;
        for (int segment = 0; segment < plan.passes_per_micro_batch(); ++segment) {
            const StageCost cost = stage_cost(plan, range, 0, segment),
                            alone = stages_.compute(plan, range, segment);
            result.passes += cost.forward.device + cost.backward.device;
            result.compute += alone.forward.device + alone.backward.device;
            forward = forward ? std::min(*forward, cost.forward.device) : cost.forward.device;
            const core::Seconds back = std::min(cost.backward.device, cost.backward_input.device);
            backward = backward ? std::min(*backward, back) : back;
        }
        if (result.passes.value <= 0) return;
        result.forward = forward->value / result.passes.value;
        result.there_and_back = (*forward + *backward) / result.passes;
    };
    const model::ModelGraph& graph = stages_.graph();
    price({0, static_cast<std::int32_t>(graph.operators.size())}, whole);
    whole.forward = whole.there_and_back = 1;
    for (const model::Unit& unit : graph.units) {
        if (stages_.first_like(unit.operators).begin != unit.operators.begin) continue;
        Whole of_unit;
        price(unit.operators, of_unit);
        if (of_unit.passes.value <= 0) continue;
        whole.forward = std::min(whole.forward, of_unit.forward);
        whole.there_and_back = std::min(whole.there_and_back, of_unit.there_and_back);
    }
    return whole;
}

// All parameters of some unit are one rank's, whatever the partition.
double Bounds::largest_unit(const schedule::Plan& plan) {
    std::optional<double>& largest = caches_of(plan).largest_unit;
    if (!largest) {
        largest = 0;
        for (const model::Unit& unit : stages_.graph().units)
            largest = std::max(*largest, double(stages_.parameter_count(plan, unit.operators).dense));
    }
    return *largest;
}

// All ranks together reduce and gather what the whole model does, whatever the partition, and some rank what
// the largest unit does. Gathers are of units. A reduced bucket is closed once it has reached its size, so
// none is larger than that and the largest parameter; and prices are concave, so many buckets take no less
// than so large ones.
core::Seconds Bounds::time_of_shards(const schedule::Plan& plan) {
    if (!plan.shards(schedule::Sharding::gradients)) return core::Seconds(0);
    const model::OperatorRange all{0, static_cast<std::int32_t>(stages_.graph().operators.size())};
    const double passes = double(plan.micro_batches) * plan.passes_per_micro_batch();
    const int pipeline = plan.layout.pipeline;
    const bool is_by_unit = plan.shards(schedule::Sharding::parameters);
    if (!is_by_unit) {
        const auto [elements, of_experts] = stages_.parameter_count(plan, all);
        const core::Bytes element = core::size_of(plan.precision.gradients);
        const double most = plan.gradient_bucket / element + stages_.largest_parameter(plan);
        const auto scatter = [&](double scattered, bool is_expert = false) {
            return time_of_collective(plan, CollectiveKind::reduce_scatter, shard_group(plan, is_expert),
                                      element * scattered, any_place);
        };
        // Tied parameters may be counted twice.
        const double divided = std::max(0.0, elements - stages_.tied_elements(plan)) / pipeline,
                     undivided = largest_unit(plan);
        const core::Seconds of_most = scatter(most);
        const core::Seconds of_unit = undivided > most ? of_most * (undivided / most) : scatter(undivided);
        core::Seconds of_all_ranks = of_most * (divided / most);
        if (plan.pieces(true) > 1) of_all_ranks += scatter(most, true) * (of_experts / pipeline / most);
        return std::max(of_all_ranks, of_unit) * passes;
    }
    const Traffic& of_all = traffic(plan, all, any_place);
    core::Seconds bound = (of_all.gathered * 2 + of_all.scattered) * (passes / pipeline);
    if (unlike_places(plan) > 1) return bound;
    const Whole& model = whole(plan);
    const double loss = stages_.constants().overlap_loss, micro_batches = plan.micro_batches;
    // As in time_of_passes, of all ranks together.
    const core::Seconds crowded =
        (model.passes * micro_batches +
         (of_all.crowding * passes + model.compute * (micro_batches * of_all.largest_share)) * loss) /
        ((1 + loss * of_all.largest_share) * pipeline);
    return std::max(bound, crowded);
}

// With one stage a rank: a rank begins when one micro-batch has passed the ranks before it, and where
// backward is in one part ends when one has gone back through them. Where these passes are a share g of
// theirs of a micro-batch, T >= g (x_0 + ... + x_r-1) + m x_r holds for the times x of m micro-batches'
// passes; equal for all ranks, it is least, and then T = g X / (1 - (1 - g / m)^p).
core::Seconds Bounds::time_of_any_partition(const schedule::Plan& plan) {
    if (!has_priced_times(cluster_)) return core::Seconds(0);
    core::Seconds bound = time_of_shards(plan);
    if (plan.keeps_parameters_on_hosts()) {
        const model::OperatorRange all{0, core::count_of(stages_.graph().operators)};
        RankParameters mean;
        mean.dense = stages_.parameter_count(plan, all).dense / plan.layout.pipeline;
        bound = std::max(bound, time_of_state_copies(plan, {mean}));
    }
    const schedule::PipelineSchedule* schedule = schedule::find_pipeline_schedule(plan.schedule);
    const int pipeline = plan.layout.pipeline;
    if (plan.virtual_stages == 1 && pipeline > 1 && schedule && unlike_places(plan) == 1) {
        const Whole& model = whole(plan);
        const double micro_batches = plan.micro_batches;
        const double share = schedule->splits_backward ? model.forward : model.there_and_back;
        if (share > 0)
            bound =
                std::max(bound, model.passes * (share / (1 - std::pow(1 - share / micro_batches, pipeline))));
    }
    return bound * claimed_share;
}

int Bounds::unlike_places(const schedule::Plan& plan) const {
    return exchanges_in_passes(plan) ? unlike_replicas(plan) : 1;
}

Bounds::AnyPartition Bounds::any_partition(const schedule::Plan& plan) {
    AnyPartition result;
    const schedule::Schedule* order = timed_order(plan);
    if (!order || plan.layout.pipeline == 1) return result;
    result.has_order = true;
    result.costs.sends = sends(plan, *order);
    result.costs.after = tied_reductions(plan, *order, stages_.tied_ends(plan, *order));
    result.costs.is_after_last_begins = scatters_every_micro_batch(plan);
    return result;
}

}  // namespace planner
