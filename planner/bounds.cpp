#include "planner/bounds.h"

#include <algorithm>
#include <mutex>

#include "schedule/lower.h"
#include "schedule/partition.h"
#include "sim/cost/collective.h"
#include "sim/cost/compute.h"
#include "sim/cost/device_memory.h"

namespace planner {

using schedule::CollectiveKind;
using schedule::ComputePhase;
using schedule::GroupKind;

namespace {

// What decides operator shapes and prices on one rank.
using ShapeKey = std::tuple<int, int, int, bool, bool>;  // tensor, micro_batch, recompute, sequence_parallel, adds to gradients of earlier micro-batches
ShapeKey shape_of(const schedule::Plan& plan) {
    const bool accumulates = plan.micro_batches > 1 && !plan.shards(schedule::Sharding::gradients);
    return {plan.layout.tensor, plan.micro_batch, static_cast<int>(plan.recompute), plan.sequence_parallel, accumulates};
}

using LayoutKey = std::tuple<int, int, int>;
LayoutKey layout_of(const schedule::Plan& plan) { return {plan.layout.tensor, plan.layout.pipeline, plan.layout.data}; }

}  // namespace

// What one pass of a micro-batch takes from the device's clock, tensor-parallel collectives included, and from the host's. The host runs ahead of the device over the
// passes of a rank, but not over the arrival of a message: a pass that begins with one takes what the slower of both clocks needs.
struct PassCost {
    core::Seconds device, host;
    core::Seconds after_arrival() const { return std::max(device, host); }
    void add(const sim::ComputePrice& price) {
        device += price.device + price.blocked;
        host += price.host + price.blocked;
    }
};

struct Bounds::StageCost {
    PassCost forward, backward, backward_input;
};

namespace {

// Lower bounds of the passes of stage `s` in a schedule's place.
struct PassTimes {
    core::Seconds forward, backward, backward_input, backward_weight;
};
PassTimes pass_times(const PassCost& forward, const PassCost& backward, const PassCost& backward_input, const schedule::Schedule& order, int s) {
    const int rank = schedule::rank_of_stage(order, s);
    const bool arrives = s > 0 && schedule::rank_of_stage(order, s - 1) != rank;
    const bool returns = s + 1 < order.stages && schedule::rank_of_stage(order, s + 1) != rank;
    PassTimes times;
    times.forward = arrives ? forward.after_arrival() : forward.device;
    times.backward = returns ? backward.after_arrival() : backward.device;
    times.backward_input = returns ? backward_input.after_arrival() : backward_input.device;
    times.backward_weight = backward.device - std::min(backward.device, backward_input.device);
    return times;
}

}  // namespace

struct Bounds::Caches {
    struct ParameterCounts {
        double all = 0, largest_unit = 0;  // of a stage
    };
    std::vector<model::TiedParameter> tied;
    std::map<std::pair<std::int32_t, std::int32_t>, ParameterCounts> parameter_counts;
    struct Communication {
        schedule::Plan plan;  // the cost object refers to it
        std::unique_ptr<sim::CommunicationCost> cost;
    };
    std::map<std::pair<ShapeKey, int>, std::optional<std::vector<model::OperatorRange>>> stages;
    std::map<std::tuple<ShapeKey, int, int>, schedule::ActivationFootprint> footprints;
    std::map<ShapeKey, std::pair<std::unique_ptr<schedule::Plan>, std::optional<sim::ComputeCost>>> compute;
    std::map<std::tuple<LayoutKey, int>, Communication> communication;  // by layout and shard degree
    std::map<std::tuple<ShapeKey, LayoutKey, int, int, int>, StageCost> stage_costs;
    std::map<std::tuple<int, int, int, int, std::vector<int>, int>, schedule::StateFootprint> states;

    sim::CommunicationCost& communication_of(const schedule::Plan& plan, const cluster::Cluster& cluster) {
        auto [place, is_new] = communication.try_emplace({layout_of(plan), plan.effective_shard_degree()});
        if (is_new) {
            place->second.plan = plan;
            place->second.cost = std::make_unique<sim::CommunicationCost>(place->second.plan, cluster);
        }
        return *place->second.cost;
    }
};

Bounds::Bounds(const model::ModelGraph& graph, const cluster::Cluster& cluster, OrderCollection& orders)
    : graph_(graph), cluster_(cluster), orders_(orders), caches_(std::make_unique<Caches>()) {
    caches_->tied = model::tied_parameters(graph);
}
Bounds::~Bounds() = default;

const std::vector<model::OperatorRange>* Bounds::stages(const schedule::Plan& plan) {
    auto [place, is_new] = caches_->stages.try_emplace({shape_of(plan), plan.stages()});
    if (is_new) {
        if (std::optional<schedule::Partition> partition = schedule::complete_partition(plan, graph_)) {
            std::vector<model::OperatorRange> ranges;
            for (std::size_t s = 0; s < partition->first_units.size(); ++s) {
                std::size_t first = static_cast<std::size_t>(partition->first_units[s]);
                std::size_t last = s + 1 < partition->first_units.size() ? static_cast<std::size_t>(partition->first_units[s + 1]) : graph_.units.size();
                ranges.push_back({graph_.units[first].operators.begin, graph_.units[last - 1].operators.end});
            }
            place->second = std::move(ranges);
        }
    }
    return place->second ? &*place->second : nullptr;
}

const schedule::ActivationFootprint& Bounds::footprint(const schedule::Plan& plan, model::OperatorRange range) {
    auto [place, is_new] = caches_->footprints.try_emplace({shape_of(plan), range.begin, range.end});
    if (is_new) place->second = schedule::activation_footprint(graph_, range, plan);
    return place->second;
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
    using Key = std::tuple<std::string, int, int, int>;
    std::mutex guard;  // of the maps; entries are made outside it, each once
    std::map<Key, Entry> entries;
    std::map<Key, WholeEntry> whole_entries;
};

OrderCollection::OrderCollection() : content_(std::make_unique<Content>()) {}
OrderCollection::~OrderCollection() = default;

const schedule::Schedule* OrderCollection::order(const schedule::Plan& plan) {
    // In-flight counts settle after a few rounds of the pipeline, and a step with more micro-batches holds no less at its peak than one with fewer: enough of
    // them, with the same remainder (schedules may ask for multiples), bound the rest from below.
    const int p = plan.layout.pipeline, most = 3 * p;
    const int micro_batches = plan.micro_batches <= most ? plan.micro_batches : most - p + plan.micro_batches % p;
    Content::Entry* entry = nullptr;
    {
        const std::lock_guard lock(content_->guard);
        entry = &content_->entries[{plan.schedule, p, plan.virtual_stages, micro_batches}];
    }
    std::call_once(entry->is_made, [&] {
        core::Diagnostics diagnostics;
        entry->order = schedule::make_schedule(plan, diagnostics, micro_batches);
        if (!entry->order) entry->order = schedule::make_schedule(plan, diagnostics);
    });
    return entry->order ? &*entry->order : nullptr;
}

const sim::ReplayOrder* OrderCollection::whole_order(const schedule::Plan& plan) {
    constexpr double most_actions = 1e5;  // about a millisecond of replay; deeper pipelines also take long to generate
    if (2.0 * plan.stages() * plan.micro_batches > most_actions) return nullptr;
    Content::WholeEntry* entry = nullptr;
    {
        const std::lock_guard lock(content_->guard);
        entry = &content_->whole_entries[{plan.schedule, plan.layout.pipeline, plan.virtual_stages, plan.micro_batches}];
    }
    std::call_once(entry->is_made, [&] {
        core::Diagnostics diagnostics;
        if (const std::optional<schedule::Schedule> order = schedule::make_schedule(plan, diagnostics)) entry->order.emplace(*order);
    });
    return entry->order ? &*entry->order : nullptr;
}

std::optional<MemoryBound> Bounds::memory(const schedule::Plan& plan) {
    const std::vector<model::OperatorRange>* ranges = stages(plan);
    const schedule::Schedule* schedule_order = ranges ? orders_.order(plan) : nullptr;
    if (!schedule_order) return std::nullopt;
    MemoryBound worst;
    for (int rank = 0; rank < plan.layout.pipeline; ++rank) {
        std::vector<model::OperatorRange> mine;
        std::vector<int> key;
        for (int s = 0; s < schedule_order->stages; ++s)
            if (schedule::rank_of_stage(*schedule_order, s) == rank) {
                mine.push_back((*ranges)[static_cast<std::size_t>(s)]);
                key.push_back(mine.back().begin);
                key.push_back(mine.back().end);
            }
        auto [place, is_new] =
            caches_->states.try_emplace({plan.layout.tensor, plan.layout.data, static_cast<int>(plan.sharding), plan.effective_shard_degree(), key, 0});
        if (is_new) place->second = schedule::state_footprint(graph_, mine, plan);
        MemoryBound bound;
        bound.pipeline_rank = rank;
        bound.state = place->second.parameters + place->second.gradients + place->second.optimizer;
        const cluster::DeviceSpec& device = cluster_.instance.device;
        // Beside what is allocated and its fragmentation: context and the communicators that every rank of such a plan uses.
        const core::Bytes fixed = device.has_concurrent_streams ? sim::least_outside_memory(plan, rank, cluster_) : core::Bytes(0);
        bound.peak = fixed + bound.state;
        // Too large already: the activations would only add to it.
        if (bound.peak <= device.memory) {
            core::Bytes held, peak;
            std::vector<const schedule::ActivationFootprint*> by_stage(ranges->size(), nullptr);
            for (int s = 0; s < schedule_order->stages; ++s)
                if (schedule::rank_of_stage(*schedule_order, s) == rank)
                    by_stage[static_cast<std::size_t>(s)] = &footprint(plan, (*ranges)[static_cast<std::size_t>(s)]);
            for (const schedule::Action& action : schedule_order->actions[static_cast<std::size_t>(rank)]) {
                const schedule::ActivationFootprint& f = *by_stage[static_cast<std::size_t>(action.stage)];
                switch (action.kind) {
                    case schedule::ActionKind::forward:
                        held += f.saved;
                        peak = std::max(peak, held + f.forward_transient);
                        break;
                    case schedule::ActionKind::backward:
                        peak = std::max(peak, held + f.backward_transient);
                        held -= f.saved;
                        break;
                    case schedule::ActionKind::backward_input:
                        peak = std::max(peak, held);
                        held -= f.saved - f.saved_for_weight;
                        break;
                    case schedule::ActionKind::backward_weight: held -= f.saved_for_weight; break;
                    default: break;  // communication and shard cells hold nothing here
                }
            }
            bound.peak += peak * (1 + device.fragmentation);
        }
        if (bound.peak > worst.peak) worst = bound;
    }
    return worst;
}

const Bounds::StageCost& Bounds::stage_cost(const schedule::Plan& plan, model::OperatorRange range, int pipeline_rank) {
    auto [place, is_new] = caches_->stage_costs.try_emplace({shape_of(plan), layout_of(plan), range.begin, range.end, pipeline_rank});
    StageCost& cost = place->second;
    if (!is_new) return cost;
    auto& [owner, compute] = caches_->compute[shape_of(plan)];
    if (!owner) {
        owner = std::make_unique<schedule::Plan>(plan);
        core::Diagnostics diagnostics;
        compute = sim::ComputeCost::make(graph_, cluster_.instance.device, *owner, diagnostics);
    }
    if (!compute) return cost;
    cost.forward.add(compute->price(range, ComputePhase::forward));
    cost.backward_input.add(compute->price(range, ComputePhase::backward_input));
    cost.backward.add(compute->price(range, ComputePhase::backward));
    if (plan.recompute == schedule::Recompute::full) {
        // The head is not recomputed (its loss needs what forward made): count layers only, which every unit but the last and the first are.
        model::OperatorRange layers = range;
        if (graph_.units.size() > 2) {
            layers.begin = std::max(layers.begin, graph_.units.front().operators.end);
            layers.end = std::min(layers.end, graph_.units.back().operators.begin);
        }
        if (layers.begin < layers.end) {
            const sim::ComputePrice again = compute->price(layers, ComputePhase::recompute);
            cost.backward.add(again);
            cost.backward_input.add(again);
        }
    }
    if (plan.layout.tensor > 1) {
        sim::CommunicationCost& communication = caches_->communication_of(plan, cluster_);
        model::CostContext whole = plan.cost_context();
        whole.sequence_parallel = false;
        for (std::int32_t i = range.begin; i < range.end; ++i) {
            const model::Operator& op = graph_.operators[static_cast<std::size_t>(i)];
            bool is_enter = op.kind == model::OperatorKind::parallel_enter, is_exit = op.kind == model::OperatorKind::parallel_exit;
            if (!is_enter && !is_exit) continue;
            const model::Tensor& tensor = graph_.tensor(op.output);
            if (!tensor.is_activation) continue;
            core::Bytes bytes = model::tensor_bytes(graph_, op.output, whole);
            auto price = [&](CollectiveKind kind) { return communication.collective(kind, GroupKind::tensor, bytes, pipeline_rank); };
            if (plan.sequence_parallel) {
                cost.forward.device += price(is_enter ? CollectiveKind::all_gather : CollectiveKind::reduce_scatter);
                if (is_exit) {
                    core::Seconds back = price(CollectiveKind::all_gather);
                    cost.backward.device += back;
                    cost.backward_input.device += back;
                }
            } else if (is_exit) {
                cost.forward.device += price(CollectiveKind::all_reduce);
            }
        }
    }
    return cost;
}

core::Seconds Bounds::time(const schedule::Plan& plan) {
    if (!cluster_.instance.device.measured_operators.empty() || !cluster_.instance.device.has_concurrent_streams) return core::Seconds(0);
    const std::vector<model::OperatorRange>* ranges = stages(plan);
    if (!ranges) return core::Seconds(0);
    const int p = plan.layout.pipeline;
    const schedule::Schedule* schedule_order = orders_.order(plan);
    if (!schedule_order) return core::Seconds(0);
    bool splits = false;
    for (const schedule::Action& action : schedule_order->actions[0]) splits = splits || action.kind == schedule::ActionKind::backward_input;
    std::vector<core::Seconds> busy(static_cast<std::size_t>(p)), host(static_cast<std::size_t>(p)), fill(static_cast<std::size_t>(p)), drain(static_cast<std::size_t>(p));
    std::vector<bool> is_seen(static_cast<std::size_t>(p), false);
    core::Seconds forward_so_far, backward_so_far;
    for (int s = 0; s < schedule_order->stages; ++s) {
        std::size_t rank = static_cast<std::size_t>(schedule::rank_of_stage(*schedule_order, s));
        const StageCost& cost = stage_cost(plan, (*ranges)[static_cast<std::size_t>(s)], static_cast<int>(rank));
        if (!is_seen[rank]) {
            is_seen[rank] = true;
            fill[rank] = forward_so_far;
            drain[rank] = backward_so_far;
        }
        const PassTimes times = pass_times(cost.forward, cost.backward, cost.backward_input, *schedule_order, s);
        const core::Seconds backward = splits ? times.backward_input + times.backward_weight : times.backward;
        busy[rank] += (times.forward + std::min(backward, times.backward)) * static_cast<double>(plan.micro_batches);
        host[rank] += (cost.forward.host + cost.backward.host) * static_cast<double>(plan.micro_batches);
        forward_so_far += times.forward;
        backward_so_far += splits ? times.backward_input : times.backward;
    }
    core::Seconds bound;
    for (std::size_t r = 0; r < busy.size(); ++r) bound = std::max(bound, fill[r] + std::max(busy[r], host[r]) + drain[r]);

    if (plan.layout.data > 1) {
        // The data stream of one rank, every collective as one message: fewer messages than there are, each no larger in sum.
        sim::CommunicationCost& communication = caches_->communication_of(plan, cluster_);
        core::Bytes element = core::size_of(plan.precision.gradients), stored = core::size_of(plan.precision.parameters);
        for (int rank = 0; rank < p; ++rank) {
            double elements = 0, largest_unit = 0;
            for (int s = 0; s < schedule_order->stages; ++s) {
                if (schedule::rank_of_stage(*schedule_order, s) != rank) continue;
                model::OperatorRange range = (*ranges)[static_cast<std::size_t>(s)];
                auto [counted, is_new] = caches_->parameter_counts.try_emplace({range.begin, range.end});
                Caches::ParameterCounts& counts = counted->second;
                if (is_new) {
                    counts.all = static_cast<double>(model::parameter_count(graph_, range));
                    for (const model::Unit& unit : graph_.units)
                        if (unit.operators.begin >= range.begin && unit.operators.end <= range.end)
                            counts.largest_unit = std::max(counts.largest_unit, static_cast<double>(model::parameter_count(graph_, unit.operators)));
                }
                elements += counts.all / plan.layout.tensor;
                largest_unit = std::max(largest_unit, counts.largest_unit / plan.layout.tensor);
            }
            if (schedule_order->stages > p) elements -= std::min(elements, largest_unit);  // a tied parameter on one rank is reduced once
            // Copies of a tied parameter on several ranks are summed over these first, so its gradient is reduced once a step whatever the sharding.
            double tied = 0;
            for (const model::TiedParameter& parameter : caches_->tied) {
                bool is_here = false, is_elsewhere = false;
                for (std::int32_t unit : parameter.units) {
                    const model::OperatorRange& operators = graph_.units[static_cast<std::size_t>(unit)].operators;
                    for (int s = 0; s < schedule_order->stages; ++s) {
                        const model::OperatorRange& range = (*ranges)[static_cast<std::size_t>(s)];
                        if (operators.begin < range.begin || operators.end > range.end) continue;
                        (schedule::rank_of_stage(*schedule_order, s) == rank ? is_here : is_elsewhere) = true;
                    }
                }
                if (is_here && is_elsewhere)
                    tied += static_cast<double>(model::element_count(graph_.parameter(parameter.parameter).shape)) / plan.layout.tensor;
            }
            const double own = std::max(0.0, elements - tied);
            auto price = [&](CollectiveKind kind, GroupKind group, core::Bytes bytes) { return communication.collective(kind, group, bytes, rank); };
            // Over the shards where there are any: the part of a hybrid reduction over replicas comes on top.
            GroupKind group =
                plan.shards(schedule::Sharding::optimizer) && plan.effective_shard_degree() < plan.layout.data ? GroupKind::shard : GroupKind::data;
            core::Seconds stream;
            double times = plan.shards(schedule::Sharding::gradients) ? plan.micro_batches : 1;
            if (plan.shards(schedule::Sharding::optimizer)) {
                stream += price(CollectiveKind::reduce_scatter, group, element * own) * times;
                if (tied > 0) stream += price(CollectiveKind::reduce_scatter, group, element * tied);
            } else stream += price(CollectiveKind::all_reduce, GroupKind::data, element * elements);
            if (plan.shards(schedule::Sharding::parameters))
                stream +=
                    price(CollectiveKind::all_gather, group, stored * std::max(0.0, 2 * elements - 2 * largest_unit)) * static_cast<double>(plan.micro_batches);
            else if (plan.shards(schedule::Sharding::optimizer)) stream += price(CollectiveKind::all_gather, group, stored * elements);
            bound = std::max(bound, stream);
        }
    }
    return bound * 0.999;  // covers what the prices round
}

core::Seconds Bounds::time_of_order(const schedule::Plan& plan) {
    const core::Seconds bound = time(plan);
    if (bound.value <= 0 || plan.layout.pipeline == 1) return bound;
    const std::vector<model::OperatorRange>* ranges = stages(plan);
    const schedule::Schedule* order = orders_.order(plan);
    const sim::ReplayOrder* whole = order ? orders_.whole_order(plan) : nullptr;
    if (!ranges || !whole) return bound;
    sim::ScheduleCosts costs;
    costs.stages.clear();
    for (std::size_t s = 0; s < ranges->size(); ++s) {
        const StageCost& cost = stage_cost(plan, (*ranges)[s], schedule::rank_of_stage(*order, static_cast<int>(s)));
        const PassTimes least = pass_times(cost.forward, cost.backward, cost.backward_input, *order, static_cast<int>(s));
        sim::StageCost times;
        times.forward = least.forward;
        times.backward_input = least.backward_input;
        times.backward_weight = std::min(least.backward_weight, std::max(core::Seconds(0), least.backward - least.backward_input));
        costs.stages.push_back(times);
    }
    std::vector<double> ends;
    return std::max(bound, whole->replay(costs, ends).makespan * 0.999);
}

}  // namespace planner
