// What passes of micro-batches through stages take, at least.
#include <algorithm>
#include <map>
#include <tuple>

#include "core/index/integers.h"
#include "planner/bound/caches.h"
#include "schedule/pass/lower.h"

namespace planner {

namespace {

// Lower bounds of the passes of stage `s` as a schedule runs them.
struct PassTimes {
    core::Seconds forward, backward, backward_input, backward_weight;
};
PassTimes pass_times(const PassCost& forward, const PassCost& backward, const PassCost& backward_input,
                     const schedule::Schedule& order, int s) {
    // With several stages a rank, two messages may be awaited before two passes: over the second of these the
    // host runs ahead.
    const bool is_single = order.stages == order.ranks;
    const bool arrives = is_single && s > 0;
    const bool returns = is_single && s + 1 < order.stages;
    PassTimes times;
    times.forward = arrives ? forward.after_arrival() : forward.device;
    times.backward = returns ? backward.after_arrival() : backward.device;
    times.backward_input = returns ? backward_input.after_arrival() : backward_input.device;
    times.backward_weight = backward.device - std::min(backward.device, backward_input.device);
    return times;
}

}  // namespace

// A pass through several units is one through each of them.
const Bounds::Collectives& Bounds::collectives(const schedule::Plan& plan, model::OperatorRange range,
                                               int pipeline_rank, int segment) {
    const model::OperatorRange like = stages_.first_like(range);
    const auto [entry, is_new] = caches_of(plan).collectives.try_emplace(
        {plan.micro_batch, recomputation_key(plan), plan.sequence_parallel, GradientHandling(plan),
         like.begin, like.end, pipeline_rank % unlike_places(plan), plan.passes_per_micro_batch(), segment});
    Collectives& times = entry->second;
    if (!is_new) return times;
    const auto add = [&](const Collectives& part, int count) {
        times.forward += part.forward * count;
        times.backward += part.backward * count;
        times.backward_input += part.backward_input * count;
        times.beside_backward += part.beside_backward * count;
    };
    if (plan.recompute_layers > 0) {
        for (const auto& [part, operators] : stages_.parts(plan, like))
            add(collectives(part, operators, pipeline_rank, segment), 1);
        return times;
    }
    const std::vector<StageCollection::DistinctUnit> units = stages_.distinct_units(like);
    if (units.size() == 1 && units.front().count == 1)
        return times = collectives_of_unit(plan, like, pipeline_rank, segment);
    for (const auto& [operators, count] : units)
        add(collectives(plan, operators, pipeline_rank, segment), count);
    return times;
}

Bounds::Collectives Bounds::collectives_of_unit(const schedule::Plan& plan, model::OperatorRange unit,
                                                int pipeline_rank, int segment) {
    const sim::ComputeCost* compute = stages_.prices(plan, segment);
    if (!compute) return {};
    sim::CommunicationCost& communication = communication_of(plan);
    const auto sum = [&](const std::vector<StageCollection::Collective>& collectives) {
        core::Seconds all;
        for (const auto& [what, bytes] : collectives)
            all +=
                compute->exposed(what, communication.collective(what.kind, what.group, bytes, pipeline_rank));
        return all;
    };
    const StageCollection::Collectives& waited = stages_.collectives(plan, unit, segment);
    return {sum(waited.forward), sum(waited.backward), sum(waited.backward_input),
            sum(waited.beside_backward)};
}

StageCost Bounds::stage_cost(const schedule::Plan& plan, model::OperatorRange range, int pipeline_rank,
                             int segment) {
    StageCost cost = stages_.compute(plan, range, segment);
    if (!exchanges_in_passes(plan)) return cost;
    const Collectives& times = collectives(plan, range, pipeline_rank, segment);
    cost.forward.device += times.forward;
    cost.backward.device += times.backward;
    cost.backward_input.device += times.backward_input;
    // Prices let the host dispatch ahead during these too, though they take no time of their own.
    cost.backward.host -= std::min(cost.backward.host, times.beside_backward);
    return cost;
}

bool splits_backward(const schedule::Schedule& order) {
    return std::any_of(order.actions[0].begin(), order.actions[0].end(), [](const schedule::Action& action) {
        return action.kind == schedule::ActionKind::backward_input;
    });
}

Bounds::StagePasses Bounds::stage_passes(const schedule::Plan& plan, const schedule::Schedule& order,
                                         bool splits, int stage, model::OperatorRange range) {
    if (plan.recomputes_by_stage()) return stage_passes(plan.of_stage(stage), order, splits, stage, range);
    const int pipeline_rank = schedule::rank_of_stage(order, stage);
    const auto micro_batches = static_cast<double>(plan.micro_batches);
    StagePasses passes;
    std::optional<core::Seconds> least_forward, least_backward;  // of any segment of a sequence
    for (int segment = 0; segment < plan.passes_per_micro_batch(); ++segment) {
        const StageCost cost = stage_cost(plan, range, pipeline_rank, segment);
        const PassTimes times = pass_times(cost.forward, cost.backward, cost.backward_input, order, stage);
        const core::Seconds backward = splits ? times.backward_input + times.backward_weight : times.backward;
        const core::Seconds whole = std::min(backward, times.backward);
        passes.busy += (times.forward + whole) * micro_batches;
        passes.last_backward = std::max(passes.last_backward, whole);
        if (splits) passes.weight += times.backward_weight * micro_batches;
        passes.host += (cost.forward.host + cost.backward.host) * micro_batches;
        const StageCost alone = stages_.compute(plan, range, segment);
        passes.compute +=
            (alone.forward.device + (splits ? std::max(alone.backward.device, alone.backward_input.device)
                                            : alone.backward.device)) *
            micro_batches;
        const core::Seconds going_back = splits ? times.backward_input : times.backward;
        least_forward = least_forward ? std::min(*least_forward, times.forward) : times.forward;
        least_backward = least_backward ? std::min(*least_backward, going_back) : going_back;
        sim::StageCost& replayed = passes.replayed.emplace_back();
        replayed.forward = times.forward;
        replayed.backward_input = times.backward_input;
        replayed.backward_weight = std::min(
            times.backward_weight, std::max(core::Seconds(0), times.backward - times.backward_input));
    }
    passes.forward = *least_forward;
    passes.backward = *least_backward;
    return passes;
}

// Of the collection's partition.
std::vector<Bounds::StagePasses> Bounds::all_passes(const schedule::Plan& plan,
                                                    const schedule::Schedule& order) {
    const bool splits = splits_backward(order);
    const int unlike = unlike_places(plan);
    const std::vector<model::OperatorRange>& ranges = *stages_.stages(plan);
    std::vector<StagePasses> stages;
    // Of stages that are alike, at places that are: what the model has in its middle is most of it.
    std::map<std::tuple<std::int32_t, std::int32_t, int, bool, bool, int>, std::size_t> first;
    for (const std::int32_t s : core::indices(ranges)) {
        const model::OperatorRange like = stages_.first_like(ranges[s]);
        const auto [known, is_new] =
            first.try_emplace({like.begin, like.end, schedule::rank_of_stage(order, s) % unlike, s == 0,
                               s + 1 == order.stages, plan.recomputes_by_stage() ? plan.layers_again(s) : 0},
                              stages.size());
        stages.push_back(is_new ? stage_passes(plan, order, splits, s, ranges[s]) : stages[known->second]);
    }
    return stages;
}

// Every rank waits for the first micro-batch, works on all, and the last one goes back to the first stage.
core::Seconds Bounds::time_of_passes(const schedule::Plan& plan, const schedule::Schedule& order,
                                     const std::vector<model::OperatorRange>& ranges,
                                     const PassesByStage& stages, const Sends& sends,
                                     const std::vector<core::Seconds>& copies) {
    const std::size_t p = order.ranks;
    std::vector<core::Seconds> busy(p), weight(p), host(p), fill(p), drain(p), compute(p), crowding(p);
    std::vector<double> share(p, 0);
    std::vector<bool> is_seen(p, false);
    core::Seconds forward_so_far, backward_so_far;
    for (int s = 0; s < order.stages; ++s) {
        const std::size_t rank = schedule::rank_of_stage(order, s);
        if (!is_seen[rank]) {
            is_seen[rank] = true;
            fill[rank] = forward_so_far;
            drain[rank] = backward_so_far;
        }
        const StagePasses& passes = *stages[s];
        forward_so_far += passes.forward;
        backward_so_far += passes.backward;
        if (order.directions == 1 && s + 1 < order.stages) {
            forward_so_far += sends[s].forward;
            backward_so_far += sends[s + 1].backward;
        }
        busy[rank] += passes.busy;
        weight[rank] += passes.weight;
        host[rank] += passes.host;
        if (!plan.shards(schedule::Sharding::gradients)) continue;
        const Traffic& beside = traffic(plan, ranges[s], schedule::rank_of_stage(order, s));
        compute[rank] += passes.compute;
        crowding[rank] += beside.crowding * (double(plan.micro_batches) * plan.passes_per_micro_batch());
        share[rank] = std::max(share[rank], beside.largest_share);
    }
    core::Seconds bound;
    for (std::size_t r = 0; r < p; ++r) {
        // Weight gradients may be computed while the last gradient goes back to the first stage.
        const core::Seconds drained = drain[r] - std::min(drain[r], weight[r]);
        bound = std::max(bound, fill[r] + std::max({busy[r], host[r], copies[r]}) + drained);
        // Of its data stream, what does not fit into the T - compute that a step of T leaves free runs beside
        // compute, which loses a share of that time: T >= passes + loss (crowding - share (T - compute)).
        const double loss = stages_.constants().overlap_loss;
        bound = std::max(bound, (fill[r] + busy[r] + drained + (crowding[r] + compute[r] * share[r]) * loss) /
                                    (1 + loss * share[r]));
    }
    return bound;
}

}  // namespace planner
