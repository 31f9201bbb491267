#include "planner/bounds.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>

#include "cluster/node.h"
#include "core/diagnostics.h"
#include "core/index/integers.h"
#include "schedule/pass/lower.h"
#include "schedule/pipeline/registry.h"
#include "schedule/plan/memory.h"
#include "sim/cost/collective/collective.h"
#include "sim/cost/framework/device_memory.h"
#include "sim/cost/host_memory.h"
#include "sim/cost/host_update.h"

namespace planner {

using schedule::CollectiveKind;
using schedule::GroupKind;

bool has_priced_times(const cluster::Cluster& cluster) {
    return cluster.instance.device.measured_operators.empty() &&
           cluster.instance.device.has_concurrent_streams;
}

namespace {

// Rounds over the pipeline after which the micro-batches in flight have settled.
constexpr int settled_rounds = 3;

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

// Do ranks exchange anything during a pass of a micro-batch?
bool exchanges_in_passes(const schedule::Plan& plan) {
    return plan.layout.tensor > 1 || plan.layout.context > 1 || plan.layout.expert > 1;
}

// Over which ranks the state of a bucket is divided.
GroupKind shard_group(const schedule::Plan& plan, bool is_expert) {
    if (is_expert) return GroupKind::expert_shard;
    return plan.effective_shard_degree() < plan.layout.data ? GroupKind::shard : GroupKind::data;
}

bool scatters_every_micro_batch(const schedule::Plan& plan) {
    return plan.shards(schedule::Sharding::gradients) && plan.pieces(false) > 1;
}

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

Bounds::PassesByStage addresses_of(const std::vector<Bounds::StagePasses>& passes) {
    Bounds::PassesByStage addresses;
    for (const Bounds::StagePasses& stage : passes) addresses.push_back(&stage);
    return addresses;
}

}  // namespace

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

struct OrderCollection::Content {
    struct Entry {
        std::once_flag is_made;
        std::optional<schedule::Schedule> order;
    };
    struct WholeEntry {
        std::once_flag is_made;
        std::optional<sim::ReplayOrder> order;
    };
    using Key = std::pair<schedule::Plan::OrderKey, int>;  // and micro-batches
    std::mutex guard;  // of the maps; entries are made outside it, each once
    WorkMeter* work = nullptr;
    void count(const std::optional<schedule::Schedule>& order) const {
        if (work && order) work->add(2.0 * order->stages * order->micro_batches, per_ordered_pass);
    }
    std::map<Key, Entry> entries;
    std::map<Key, WholeEntry> whole_entries;
};

OrderCollection::OrderCollection(WorkMeter* work) : content_(std::make_unique<Content>()) {
    content_->work = work;
}
OrderCollection::~OrderCollection() = default;

const schedule::Schedule* OrderCollection::order(const schedule::Plan& plan) {
    // In-flight counts settle after a few rounds of the pipeline, and a step with more micro-batches holds no
    // less at its peak than one with fewer: enough of them, with the same remainder (schedules may ask for
    // multiples), bound the rest from below.
    const int p = plan.layout.pipeline, most = settled_rounds * p;
    const int micro_batches =
        plan.micro_batches <= most ? plan.micro_batches : most - p + plan.micro_batches % p;
    Content::Entry* entry = nullptr;
    {
        const std::lock_guard lock(content_->guard);
        entry = &content_->entries[{plan.order_key(), micro_batches}];
    }
    std::call_once(entry->is_made, [&] {
        core::Diagnostics diagnostics;
        entry->order = schedule::make_schedule(plan, diagnostics, micro_batches);
        if (!entry->order) entry->order = schedule::make_schedule(plan, diagnostics);
        content_->count(entry->order);
        if (entry->order)  // kept for long
            for (std::vector<schedule::Action>& actions : entry->order->actions) actions.shrink_to_fit();
    });
    return entry->order ? &*entry->order : nullptr;
}

const sim::ReplayOrder* OrderCollection::whole_order(const schedule::Plan& plan) {
    // About a millisecond of replay; deeper pipelines also take long to generate.
    if (2.0 * plan.stages() * plan.micro_batches * plan.passes_per_micro_batch() > most_replayed_passes)
        return nullptr;
    Content::WholeEntry* entry = nullptr;
    {
        const std::lock_guard lock(content_->guard);
        entry = &content_->whole_entries[{plan.order_key(), plan.micro_batches}];
    }
    std::call_once(entry->is_made, [&] {
        core::Diagnostics diagnostics;
        std::optional<schedule::Schedule> order = schedule::make_schedule(plan, diagnostics);
        if (!order) return;
        content_->count(order);
        // As lowering runs them: of an overlapped slot the forward is handed on before the backward has
        // ended.
        for (std::vector<schedule::Action>& actions : order->actions)
            for (schedule::Action& action : actions) action.overlaps_next = false;
        entry->order.emplace(*order);
    });
    return entry->order ? &*entry->order : nullptr;
}

std::optional<MemoryBound> Bounds::memory(const schedule::Plan& plan) {
    const schedule::Schedule* order = stages_.stages(plan) ? orders_.order(plan) : nullptr;
    if (!order) return std::nullopt;
    return memory_of(plan, *order, stages_.state_elements(plan, *order),
                     [&](std::size_t rank) { return stages_.activations(plan, *order)[rank].peak; });
}

std::optional<MemoryBound> Bounds::memory_of(const schedule::Plan& plan,
                                             const std::vector<model::OperatorRange>& ranges) {
    const schedule::Schedule* order = orders_.order(plan);
    if (!order) return std::nullopt;
    std::optional<std::vector<RankActivations>> activations;
    return memory_of(plan, *order, stages_.state_elements(plan, *order, ranges), [&](std::size_t rank) {
        if (!activations) activations = stages_.activations(plan, *order, ranges);
        return (*activations)[rank].peak;
    });
}

MemoryBound Bounds::memory_of(const schedule::Plan& plan, const schedule::Schedule& order,
                              const std::vector<schedule::StateElements>& elements,
                              const std::function<core::Bytes(std::size_t)>& activations) {
    const cluster::DeviceSpec& device = cluster_.instance.device;
    MemoryBound worst;
    core::Bytes least_on_host;
    for (int rank = 0; rank < order.ranks; ++rank) {
        const schedule::StateFootprint state = schedule::state_footprint(elements[rank], plan);
        MemoryBound bound;
        bound.pipeline_rank = rank;
        bound.state = state.sum();
        least_on_host = rank == 0 ? state.on_host : std::min(least_on_host, state.on_host);
        bound.peak = device.memory - room(plan, rank) + bound.state;
        // Too large already: the activations would only add to it.
        if (bound.peak <= device.memory) bound.peak += activations(rank) * (1 + device.fragmentation);
        if (bound.peak > worst.peak) worst = bound;
    }
    if (plan.updates_on_hosts())
        worst.on_hosts = least_on_host *
                         (sim::state_bytes_on_host(plan) / schedule::optimizer_bytes_on_host(plan)) *
                         static_cast<double>(cluster::most_ranks_of_a_node(cluster_, plan.layout.ranks()));
    return worst;
}

// Beside what is allocated and its fragmentation there are the context and the communicators that every rank
// of such a plan uses.
core::Bytes Bounds::room(const schedule::Plan& plan, int pipeline_rank) {
    const cluster::DeviceSpec& device = cluster_.instance.device;
    if (!device.has_concurrent_streams) return device.memory;
    const int degree = plan.sharding == schedule::Sharding::none ? 0 : plan.effective_shard_degree();
    const std::lock_guard lock(outside_guard_);
    const auto [entry, is_new] = outside_memory_.try_emplace({layout_key(plan), degree, pipeline_rank});
    if (is_new) entry->second = sim::least_outside_memory(plan, pipeline_rank, cluster_);
    return device.memory - entry->second;
}

core::Bytes Bounds::state(const schedule::Plan& plan, model::OperatorRange range) {
    return schedule::state_footprint(stages_.parameter_count(plan, range), plan).sum();
}

Bounds::Saved Bounds::saved(const schedule::Plan& plan, model::OperatorRange range) {
    Saved least = stages_.saved(plan, range);
    for (int segment = 1; segment < plan.passes_per_micro_batch(); ++segment) {
        const Saved of_segment = stages_.saved(plan, range, segment);
        least.whole = std::min(least.whole, of_segment.whole);
        least.for_weights = std::min(least.for_weights, of_segment.for_weights);
    }
    return least;
}

bool Bounds::offloads_anything(const schedule::Plan& plan) {
    const schedule::Schedule* order = stages_.stages(plan) ? orders_.order(plan) : nullptr;
    if (!order || plan.offload == schedule::Offload::none) return false;
    const std::vector<RankActivations>& ranks = stages_.activations(plan, *order);
    return std::any_of(ranks.begin(), ranks.end(),
                       [](const RankActivations& rank) { return rank.copies > 0; });
}

// The copy stream of each pipeline rank, out and back. Passes of further micro-batches wait no less for their
// backward than those of a short order do, so no less leaves.
std::vector<core::Seconds> Bounds::copy_times(const schedule::Plan& plan, const schedule::Schedule& order,
                                              const std::vector<RankActivations>& ranks) {
    std::vector<core::Seconds> times(order.ranks);
    sim::CommunicationCost& communication = communication_of(plan);
    for (std::size_t r = 0; r < times.size(); ++r) {
        if (ranks[r].copies == 0) continue;
        const core::Bytes mean =
            ranks[r].offloaded / static_cast<double>(ranks[r].copies);  // times are linear in bytes
        times[r] = (communication.host_copy(mean, false, plan.offload) +
                    communication.host_copy(mean, true, plan.offload)) *
                   static_cast<double>(ranks[r].copies) *
                   (static_cast<double>(plan.micro_batches) / order.micro_batches);
    }
    return times;
}

core::Seconds Bounds::time_of_copies(const schedule::Plan& plan,
                                     const std::vector<model::OperatorRange>& ranges) {
    const schedule::Schedule* order = plan.offload == schedule::Offload::none ? nullptr : timed_order(plan);
    if (!order) return core::Seconds(0);
    const std::vector<core::Seconds> times =
        copy_times(plan, *order, stages_.activations(plan, *order, ranges));
    return *std::max_element(times.begin(), times.end()) * claimed_share;
}

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

const schedule::Schedule* Bounds::timed_order(const schedule::Plan& plan) {
    if (!has_priced_times(cluster_)) return nullptr;
    return stages_.stages(plan) ? orders_.order(plan) : nullptr;
}

// Prices of operators add up, so all stages together take what the model takes as one stage: on some rank at
// least its even share. Where the ranks of a stage are whole nodes, all stages exchange over the same links.
core::Seconds Bounds::time_of_work(const schedule::Plan& plan) {
    if (!has_priced_times(cluster_)) return core::Seconds(0);
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
    const model::OperatorRange all{0, core::count_of(stages_.graph().operators)};
    return even_share(plan, [&](int segment) { return stages_.compute(plan, all, segment); });
}

const Bounds::Whole& Bounds::whole(const schedule::Plan& plan) {
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

// The copy stream of the rank that holds most: shards come before each pass forward and backward of their
// unit, the first before anything else runs. Gradients go after each backward pass but for those that are
// reduced once a step.
core::Seconds Bounds::time_of_state_copies(const schedule::Plan& plan,
                                           const std::vector<RankParameters>& parameters) {
    double most = 0;
    for (const RankParameters& held : parameters) most = std::max(most, held.dense);
    // A tied parameter may be counted twice, and be fetched once.
    const double tied = stages_.tied_elements(plan), own = std::max(0.0, most - tied) / plan.pieces(false);
    sim::CommunicationCost& communication = communication_of(plan);
    const core::Bytes stored = core::size_of(plan.precision.parameters),
                      element = core::size_of(plan.precision.gradients);
    core::Seconds of_pass = communication.state_copy(stored * own, true) * 2;
    if (!plan.has_sequence_parallelism()) of_pass += communication.state_copy(element * own, false);
    return of_pass * (double(plan.micro_batches) * plan.passes_per_micro_batch());
}

int Bounds::unlike_places(const schedule::Plan& plan) const {
    return exchanges_in_passes(plan) ? unlike_replicas(plan) : 1;
}

bool Bounds::state_never_fits(const schedule::Plan& plan) {
    const model::OperatorRange all{0, core::count_of(stages_.graph().operators)};
    const cluster::DeviceSpec& device = cluster_.instance.device;
    return state(plan, all) > (device.memory - device.context_memory) * plan.layout.pipeline;
}

const std::vector<std::vector<Bounds::Kept>>& Bounds::kept(const schedule::Plan& plan) {
    const schedule::Schedule* order = orders_.order(plan);
    const auto [entry, is_new] = kept_.try_emplace(order);
    std::vector<std::vector<Kept>>& ranks = entry->second;
    if (!order || !is_new) return ranks;
    for (const std::vector<schedule::Action>& actions : order->actions) {
        Kept now;
        std::map<double, double, std::greater<>> most = {{1, 0}};  // for weights, by whole ones
        for (const schedule::Action& action : actions) {
            if (action.kind == schedule::ActionKind::forward) ++now.whole;
            else if (action.kind == schedule::ActionKind::backward) --now.whole;
            else if (action.kind == schedule::ActionKind::backward_weight) --now.for_weights;
            else if (action.kind == schedule::ActionKind::backward_input) {
                --now.whole;
                ++now.for_weights;
            }
            double& for_weights = most[now.whole];
            for_weights = std::max(for_weights, now.for_weights);
        }
        std::vector<Kept>& moments = ranks.emplace_back();
        for (const auto& [whole, for_weights] : most)
            if (moments.empty() || for_weights > moments.back().for_weights)
                moments.push_back({whole, for_weights});
    }
    return ranks;
}

bool Bounds::never_fits(const schedule::Plan& plan) {
    const cluster::DeviceSpec& device = cluster_.instance.device;
    const model::OperatorRange all{0, core::count_of(stages_.graph().operators)};
    double state = this->state(plan, all).value;
    const schedule::Schedule* order = orders_.order(plan);
    const double room = device.memory.value;
    if (!order || order->stages != order->ranks) return state > room * plan.layout.pipeline;
    // The state goes where a byte of activations costs most, as they are there of most micro-batches; what
    // is left takes the activations.
    std::vector<double> in_flight;
    for (const std::vector<Kept>& moments : kept(plan)) in_flight.push_back(moments.front().whole);
    std::sort(in_flight.rbegin(), in_flight.rend());
    double room_left = 0;  // for one micro-batch, or one segment
    for (const double most : in_flight) {
        const double taken = std::min(state, room);
        state -= taken;
        room_left += (room - taken) / (most * (1 + device.fragmentation));
    }
    return state > 0 || saved(plan, all).whole.value > room_left;
}

Bounds::StagePasses Bounds::stage_passes(const schedule::Plan& plan, const schedule::Schedule& order,
                                         bool splits, int stage, model::OperatorRange range) {
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
    std::map<std::tuple<std::int32_t, std::int32_t, int, bool, bool>, std::size_t> first;
    for (const std::int32_t s : core::indices(ranges)) {
        const model::OperatorRange like = stages_.first_like(ranges[s]);
        const auto [known, is_new] = first.try_emplace(
            {like.begin, like.end, schedule::rank_of_stage(order, s) % unlike, s == 0, s + 1 == order.stages},
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
