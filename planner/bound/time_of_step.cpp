// What a step takes, at least: its passes, then its update; and the replay of its compute order.
#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "core/index/integers.h"
#include "planner/bound/caches.h"
#include "sim/cost/host_update.h"

namespace planner {

bool has_priced_times(const cluster::Cluster& cluster) {
    return cluster.instance.device.measured_operators.empty() &&
           cluster.instance.device.has_concurrent_streams;
}

namespace {

Bounds::PassesByStage addresses_of(const std::vector<Bounds::StagePasses>& passes) {
    Bounds::PassesByStage addresses;
    for (const Bounds::StagePasses& stage : passes) addresses.push_back(&stage);
    return addresses;
}

}  // namespace

Bounds::Bounds(const cluster::Cluster& cluster, OrderCollection& orders, StageCollection& stages,
               sim::KnownCandidates* known)
    : cluster_(cluster),
      orders_(orders),
      stages_(stages),
      own_known_(known ? nullptr : std::make_unique<sim::KnownCandidates>()),
      known_(known ? *known : *own_known_) {}
Bounds::~Bounds() = default;

Bounds::LayoutKey Bounds::layout_key(const schedule::Plan& plan) {
    const schedule::ParallelLayout& l = plan.layout;
    return {l.tensor,
            l.pipeline,
            l.data,
            l.context,
            l.expert,
            l.expert_tensor(),
            plan.tensor_overlap,
            plan.context_communication,
            plan.gradient_bucket.value};
}

Bounds::Caches& Bounds::caches_of(const schedule::Plan& plan) {
    std::unique_ptr<Caches>& caches = caches_[layout_key(plan)];
    if (!caches) caches = std::make_unique<Caches>();
    return *caches;
}

sim::CommunicationCost& Bounds::communication_of(const schedule::Plan& plan) {
    return caches_of(plan).communication_of(plan, cluster_, stages_.constants(), known_);
}

const schedule::Schedule* Bounds::timed_order(const schedule::Plan& plan) {
    if (!has_priced_times(cluster_)) return nullptr;
    return stages_.stages(plan) ? orders_.order(plan) : nullptr;
}

core::Seconds Bounds::time(const schedule::Plan& plan) {
    const schedule::Schedule* order = timed_order(plan);
    if (!order) return core::Seconds(0);
    const std::vector<StagePasses> stages = all_passes(plan, *order);
    return time(plan, *order, addresses_of(stages));
}

core::Seconds Bounds::time(const schedule::Plan& plan, const schedule::Schedule& order,
                           const PassesByStage& stages) {
    std::vector<core::Seconds> copies(order.ranks);
    if (plan.offload != schedule::Offload::none)
        copies = copy_times(plan, order, stages_.activations(plan, order));
    const std::vector<model::OperatorRange>& ranges = *stages_.stages(plan);
    core::Seconds bound = time_of_passes(plan, order, ranges, stages, sends(plan, order), copies);
    if (plan.keeps_parameters_on_hosts())
        bound = std::max(bound, time_of_state_copies(plan, stages_.rank_parameters(plan, order)));
    bound += after_passes(plan, order);
    if (plan.layout.data > 1)
        bound =
            std::max(bound, data_parallel_time(plan, order, ranges, tied_reductions(plan, order, ranges)));
    return bound * claimed_share;
}

// The update begins when the last pass and every reduction have ended, and sharded parameters come back after
// it: the least of any rank, since any rank's passes may be the last.
core::Seconds Bounds::after_passes(const schedule::Plan& plan, const schedule::Schedule& order) {
    const auto [entry, is_new] = caches_of(plan).after_passes.try_emplace(
        {&order, plan.micro_batch, recomputation_key(plan), core::position_of(plan.sharding),
         plan.effective_shard_degree()});
    if (is_new)
        entry->second =
            after_passes(plan, order, *stages_.stages(plan), stages_.rank_parameters(plan, order));
    return entry->second;
}

core::Seconds Bounds::after_passes(const schedule::Plan& plan, const schedule::Schedule& order,
                                   const std::vector<model::OperatorRange>& ranges,
                                   const std::vector<RankParameters>& parameters) {
    std::vector<core::Seconds> gathered(order.ranks);
    for (int s = 0; s < order.stages && plan.layout.data > 1; ++s) {
        const int rank = schedule::rank_of_stage(order, s);
        gathered[rank] += traffic(plan, ranges[s], rank).after_update;
    }
    std::optional<core::Seconds> least;
    for (int rank = 0; rank < order.ranks; ++rank) {
        const RankParameters& held = parameters[rank];
        // A tied parameter on one rank is updated once.
        const double dense =
            order.stages > order.ranks ? held.dense - std::min(held.dense, held.largest_unit) : held.dense;
        const core::Seconds update =
            update_time(plan, dense / plan.pieces(false) + held.experts / plan.pieces(true));
        const core::Seconds time = std::max(update, gathered[rank]);
        least = least ? std::min(*least, time) : time;
    }
    return least.value_or(core::Seconds(0));
}

core::Seconds Bounds::update_time(const schedule::Plan& plan, double elements) {
    return plan.updates_on_hosts() ? sim::HostUpdate(plan, cluster_, stages_.constants()).of(elements)
                                   : stages_.update(plan, elements);
}

Bounds::OnceAStep Bounds::once_a_step(const schedule::Plan& plan, model::OperatorRange range) {
    OnceAStep result;
    if (!has_priced_times(cluster_)) return result;
    const schedule::StateElements held = elements(plan, range);
    if (held.dense + held.experts <= 0) return result;
    result.after = update_time(plan, held.dense / plan.pieces(false) + held.experts / plan.pieces(true));
    if (plan.layout.data == 1) return result;
    const Traffic& exchanged = traffic(plan, range, any_place);
    result.reduced = exchanged.reduced;
    result.after = std::max(result.after, exchanged.after_update);
    return result;
}

Bounds::OrderTiming Bounds::replay(const schedule::Plan& plan, const schedule::Schedule& order,
                                   const std::vector<model::OperatorRange>& ranges,
                                   const PassesByStage& stages, const Sends& sends,
                                   const std::vector<core::Seconds>& tied, core::Seconds after) {
    OrderTiming result;
    if (plan.layout.pipeline == 1) return result;
    result.plan_ = plan;
    result.orders_ = &orders_;
    result.after_ = after;
    result.costs_.stages.clear();
    for (const StagePasses* stage : stages)
        result.costs_.stages.insert(result.costs_.stages.end(), stage->replayed.begin(),
                                    stage->replayed.end());
    result.costs_.sends = sends;
    result.costs_.after = tied;
    result.costs_.is_after_last_begins = scatters_every_micro_batch(plan);
    if (plan.layout.data == 1) return result;
    for (const std::int32_t s : core::indices(ranges)) {
        const Traffic& of_stage = traffic(plan, ranges[s], schedule::rank_of_stage(order, s));
        result.messages_.push_back(
            {of_stage.gathered, of_stage.gathered, of_stage.scattered, of_stage.reduced});
    }
    return result;
}

core::Seconds Bounds::OrderTiming::time() const {
    const sim::ReplayOrder* whole = plan_ ? orders_->whole_order(*plan_) : nullptr;
    if (!whole) return known_;
    std::vector<double> ends;
    core::Seconds end = whole->replay(costs_, ends).makespan;
    if (!messages_.empty()) end = std::max(end, whole->end_of_messages(costs_, ends, messages_));
    return std::max(known_, (end + after_) * claimed_share);
}

Bounds::OrderTiming Bounds::order_timing(const schedule::Plan& plan) {
    const schedule::Schedule* order = timed_order(plan);
    if (!order) return {};
    const std::vector<StagePasses> passes = all_passes(plan, *order);
    const PassesByStage stages = addresses_of(passes);
    OrderTiming result;
    const core::Seconds known = time(plan, *order, stages);
    if (known.value > 0)
        result = replay(plan, *order, *stages_.stages(plan), stages, sends(plan, *order),
                        tied_reductions(plan, *order, *stages_.stages(plan)), after_passes(plan, *order));
    result.known_ = known;
    return result;
}

core::Seconds Bounds::time_of_order(const schedule::Plan& plan,
                                    const std::vector<model::OperatorRange>& ranges,
                                    const PassesByStage& stages, core::Seconds limit) {
    const schedule::Schedule* order = timed_order(plan);
    if (!order) return core::Seconds(0);
    const std::vector<RankParameters> parameters = stages_.rank_parameters(plan, *order, ranges);
    const std::vector<core::Seconds> no_copies(order->ranks);
    const core::Seconds after = after_passes(plan, *order, ranges, parameters);
    const Sends& sent = sends(plan, *order);
    core::Seconds bound = time_of_passes(plan, *order, ranges, stages, sent, no_copies);
    if (plan.keeps_parameters_on_hosts()) bound = std::max(bound, time_of_state_copies(plan, parameters));
    bound += after;
    const std::vector<core::Seconds> tied = tied_reductions(plan, *order, ranges);
    if (plan.layout.data > 1) bound = std::max(bound, data_parallel_time(plan, *order, ranges, tied));
    if (bound * claimed_share < limit)
        return std::max(bound * claimed_share,
                        replay(plan, *order, ranges, stages, sent, tied, after).time());
    return bound * claimed_share;
}

}  // namespace planner
