#include "planner/stage_collection.h"

#include <algorithm>
#include <optional>

#include "core/diagnostics.h"
#include "core/index/integers.h"
#include "model/segment.h"
#include "schedule/pass/stage_recipes.h"
#include "schedule/plan/partition.h"
#include "sim/cost/framework/framework_lookup.h"

namespace planner {

struct StageCollection::Passes {
    StageCost cost;
    Collectives collectives;
};

using SegmentKey = std::pair<int, int>;  // passes of a micro-batch, and which

struct StageCollection::Prices {
    schedule::Plan plan;  // the cost objects refer to it
    std::map<SegmentKey, std::optional<sim::ComputeCost>> compute;
    std::map<std::pair<std::int32_t, SegmentKey>, Passes> passes;  // of units, by their first operator
    std::map<std::tuple<std::int32_t, std::int32_t, SegmentKey>, StageCost> stages;
};

struct StageCollection::Division {
    schedule::Partition partition;
    std::vector<model::OperatorRange> ranges;  // of its stages
};

// Made once, by whoever asks first, and without the lock of its shape: it takes long.
template <class Made>
struct MadeOnce {
    std::once_flag is_made;
    Made made;
};

struct StageCollection::Shape {
    std::mutex guard;  // of everything below
    schedule::PartitionProblem balance;
    std::map<int, std::optional<Division>> divisions;  // by the number of stages
    std::map<std::tuple<std::int32_t, std::int32_t, bool, SegmentKey>, schedule::ActivationFootprint>
        footprints;  // by operators, with offload or without
    std::map<std::pair<const schedule::Schedule*, int>, MadeOnce<std::vector<RankActivations>>>
        activations;  // by order and loading horizon, 0: without offload
    std::map<const schedule::Schedule*, MadeOnce<std::vector<schedule::StateElements>>> state_elements;
    std::map<const schedule::Schedule*, MadeOnce<std::vector<RankParameters>>> rank_parameters;
    std::map<GradientHandling, Prices> prices;
    std::map<int, core::Bytes> smallest_boundaries;  // by passes
};

GradientHandling::GradientHandling(const schedule::Plan& plan)
    : accumulates(plan.micro_batches * plan.passes_per_micro_batch() > 1),
      is_sharded(plan.shards(schedule::Sharding::gradients)),
      is_reduced_whole(plan.layout.data > 1 && !plan.shards(schedule::Sharding::optimizer)) {}

StageCollection::StageCollection(const model::ModelGraph& graph, const cluster::DeviceSpec& device,
                                 const sim::CostConstants& constants)
    : graph_(graph),
      device_(device),
      constants_(constants),
      repetition_(graph),
      tied_(model::tied_parameters(graph)) {
    for (const model::Unit& unit : graph.units) {
        const model::OperatorRange first = repetition_.first_like(unit.operators);
        unit_like_.push_back(first);
        const std::int32_t moved = unit.operators.begin - first.begin;
        for (std::int32_t i = unit.operators.begin; i < unit.operators.end; ++i)
            first_like_.push_back(i - moved);
    }
}
StageCollection::~StageCollection() = default;

namespace {

template <class Shape, class Map, class Key, class Make>
const auto& made_once(Shape& shape, Map& map, const Key& key, Make make) {
    typename Map::mapped_type* entry = nullptr;
    {
        const std::lock_guard lock(shape.guard);
        entry = &map[key];
    }
    std::call_once(entry->is_made, [&] { entry->made = make(); });
    return entry->made;
}

}  // namespace

StageCollection::Shape& StageCollection::shape_of(const schedule::Plan& plan) {
    const std::lock_guard lock(guard_);
    std::unique_ptr<Shape>& shape =
        shapes_[{plan.layout.tensor, plan.layout.context, plan.layout.expert, plan.micro_batch,
                 core::position_of(plan.recompute), plan.sequence_parallel, plan.tensor_overlap}];
    if (!shape) shape = std::make_unique<Shape>();
    return *shape;
}

// Forward and backward of a micro-batch through each unit, as long as the slower of device and host; FLOPs
// where the device has no price for the model. One answer for all plans of the shape: of steps with several
// micro-batches whose gradients are reduced in parts.
std::vector<core::Seconds> StageCollection::unit_loads(Shape& shape, const schedule::Plan& plan) {
    schedule::Plan usual = plan;
    usual.keep_sequences_whole();
    usual.micro_batches = 2;
    usual.sharding = plan.layout.data > 1 ? schedule::Sharding::optimizer : schedule::Sharding::none;
    usual.shard_degree = 0;
    if (!compute_cost(shape, usual, 0)) return schedule::partition_loads(plan, graph_);
    std::vector<core::Seconds> loads;
    for (const model::Unit& unit : graph_.units) {
        const StageCost& cost = passes(shape, usual, unit.operators, 0).cost;
        loads.push_back(cost.forward.after_arrival() + cost.backward.after_arrival());
    }
    return loads;
}

const StageCollection::Division* StageCollection::division(Shape& shape, const schedule::Plan& plan) {
    const auto [entry, is_new] = shape.divisions.try_emplace(plan.stages());
    if (is_new) {
        std::optional<schedule::Partition> partition;
        if (!plan.partition.first_units.empty()) partition = plan.partition;
        else {
            if (shape.balance.load.empty()) shape.balance.load = unit_loads(shape, plan);
            shape.balance.stages = plan.stages();
            if (auto solution = schedule::partition_contiguous(shape.balance))
                partition = std::move(solution->partition);
        }
        if (partition) {
            Division& division = entry->second.emplace();
            for (std::size_t s = 0; s < partition->first_units.size(); ++s) {
                const std::size_t first = partition->first_units[s];
                const auto last = s + 1 < partition->first_units.size()
                                      ? static_cast<std::size_t>(partition->first_units[s + 1])
                                      : graph_.units.size();
                division.ranges.push_back(
                    {graph_.units[first].operators.begin, graph_.units[last - 1].operators.end});
            }
            division.partition = std::move(*partition);
        }
    }
    return entry->second ? &*entry->second : nullptr;
}

const std::vector<model::OperatorRange>* StageCollection::stages(Shape& shape, const schedule::Plan& plan) {
    const Division* found = division(shape, plan);
    return found ? &found->ranges : nullptr;
}

const schedule::Partition* StageCollection::partition(const schedule::Plan& plan) {
    Shape& shape = shape_of(plan);
    const std::lock_guard lock(shape.guard);
    const Division* found = division(shape, plan);
    return found ? &found->partition : nullptr;
}

const std::vector<model::OperatorRange>* StageCollection::stages(const schedule::Plan& plan) {
    Shape& shape = shape_of(plan);
    const std::lock_guard lock(shape.guard);
    return stages(shape, plan);
}

const model::ModelGraph& StageCollection::graph_of(const schedule::Plan& plan, int segment) {
    const int count = plan.passes_per_micro_batch();
    if (count == 1) return graph_;
    const std::lock_guard lock(guard_);
    return segment_graphs_.try_emplace(count, graph_, count).first->second[segment];
}

const schedule::ActivationFootprint& StageCollection::footprint(Shape& shape, const schedule::Plan& plan,
                                                                model::OperatorRange stage, int segment) {
    const model::OperatorRange like = repetition_.first_like(stage);
    const auto [entry, is_new] = shape.footprints.try_emplace({like.begin,
                                                               like.end,
                                                               plan.offload != schedule::Offload::none,
                                                               {plan.passes_per_micro_batch(), segment}});
    if (!is_new) return entry->second;
    schedule::Plan bounding = plan;
    // Frameworks that keep some products and run all else again hold less than the Program, and no less than
    // if whole units ran again.
    if (plan.recompute == schedule::Recompute::selective &&
        sim::framework_traits(plan.framework).recomputes_alternate_products)
        bounding.recompute = schedule::Recompute::full;
    return entry->second = schedule::activation_footprint(graph_of(plan, segment), like, bounding);
}

StageCollection::Saved StageCollection::saved(const schedule::Plan& plan, model::OperatorRange range,
                                              int segment) {
    Shape& shape = shape_of(plan);
    const std::lock_guard lock(shape.guard);
    const schedule::ActivationFootprint& of_range = footprint(shape, plan, range, segment);
    return {of_range.saved, of_range.saved_for_weight + of_range.kept_for_weight};
}

StageCollection::Prices& StageCollection::prices_of(Shape& shape, const schedule::Plan& plan) {
    const auto [entry, is_new] = shape.prices.try_emplace(GradientHandling(plan));
    if (is_new) {
        entry->second.plan = plan;
        // Whole sequences of it, and graphs of parts, accumulate where those of the plan do.
        entry->second.plan.micro_batches = plan.micro_batches * plan.passes_per_micro_batch();
    }
    return entry->second;
}

const sim::ComputeCost* StageCollection::compute_cost(Shape& shape, const schedule::Plan& plan, int segment) {
    Prices& prices = prices_of(shape, plan);
    const auto [entry, is_new] = prices.compute.try_emplace({plan.passes_per_micro_batch(), segment});
    if (is_new) {
        core::Diagnostics diagnostics;
        entry->second =
            sim::ComputeCost::make(graph_of(plan, segment), device_, prices.plan, diagnostics, constants_, 1,
                                   first_like_.size() == graph_.operators.size() ? &first_like_ : nullptr);
    }
    return entry->second ? &*entry->second : nullptr;
}

std::vector<StageCollection::DistinctUnit> StageCollection::distinct_units(model::OperatorRange range) const {
    std::vector<DistinctUnit> units;
    for (const std::int32_t u : core::indices(graph_.units)) {
        const std::int32_t begin = graph_.units[u].operators.begin;
        if (begin < range.begin || begin >= range.end) continue;
        const model::OperatorRange like = unit_like_[u];
        const auto known = std::find_if(units.begin(), units.end(), [&](const DistinctUnit& distinct) {
            return distinct.operators.begin == like.begin;
        });
        if (known == units.end()) units.push_back({like, 1});
        else ++known->count;
    }
    return units;
}

// What every pass of the unit runs, as lowering cuts it, without data parallelism and offload.
const StageCollection::Passes& StageCollection::passes(Shape& shape, const schedule::Plan& plan,
                                                       model::OperatorRange unit, int segment) {
    const model::OperatorRange like = repetition_.first_like(unit);
    const auto [entry, is_new] =
        prices_of(shape, plan).passes.try_emplace({like.begin, {plan.passes_per_micro_batch(), segment}});
    if (!is_new) return entry->second;
    const schedule::StageRecipes recipes(plan, graph_of(plan, segment), like);
    const sim::ComputeCost* compute = compute_cost(shape, plan, segment);
    const auto collective_of = [](const schedule::Step& step) {
        return Collective{
            {step.collective, step.group, step.payload, step.phase, step.operators, step.pieces}, step.bytes};
    };
    // A bound: of pieces the last one forward alone is waited for whatever the times are.
    const auto is_waited_for = [](const schedule::Step& step) {
        const bool is_forward = step.payload == schedule::PayloadKind::activation;
        return step.kind == schedule::Step::Kind::collective && !step.starts_early &&
               (step.pieces == 1 || (is_forward && step.piece + 1 == step.pieces));
    };
    const auto add = [&](const schedule::Recipe& recipe, PassCost& cost,
                         std::vector<Collective>& collectives) {
        for (const schedule::Step& step : recipe) {
            if (is_waited_for(step)) collectives.push_back(collective_of(step));
            if (step.kind != schedule::Step::Kind::compute || !compute) continue;
            const sim::ComputePrice price =
                compute->price(step.operators, step.phase, step.piece, step.pieces);
            cost.device += price.device + price.blocked;
            cost.host += price.host + price.blocked;
        }
    };
    Passes& made = entry->second;
    add(recipes.of(schedule::ComputePhase::forward), made.cost.forward, made.collectives.forward);
    const schedule::Recipe backward = recipes.of(schedule::ComputePhase::backward);
    add(backward, made.cost.backward, made.collectives.backward);
    for (const schedule::Step& step : backward)
        if (step.kind == schedule::Step::Kind::collective && !is_waited_for(step))
            made.collectives.beside_backward.push_back(collective_of(step));
    add(recipes.of(schedule::ComputePhase::backward_input), made.cost.backward_input,
        made.collectives.backward_input);
    return made;
}

// A pass through several units is one through each of them.
StageCost StageCollection::compute(const schedule::Plan& plan, model::OperatorRange stage, int segment) {
    Shape& shape = shape_of(plan);
    const std::lock_guard lock(shape.guard);
    const model::OperatorRange like = repetition_.first_like(stage);
    const auto [entry, is_new] =
        prices_of(shape, plan)
            .stages.try_emplace({like.begin, like.end, {plan.passes_per_micro_batch(), segment}});
    StageCost& cost = entry->second;
    if (!is_new) return cost;
    const auto add = [](PassCost& sum, const PassCost& pass, int count) {
        sum.device += pass.device * count;
        sum.host += pass.host * count;
    };
    for (const auto& [operators, count] : distinct_units(like)) {
        const StageCost& of_unit = passes(shape, plan, operators, segment).cost;
        add(cost.forward, of_unit.forward, count);
        add(cost.backward, of_unit.backward, count);
        add(cost.backward_input, of_unit.backward_input, count);
    }
    return cost;
}

const StageCollection::Collectives& StageCollection::collectives(const schedule::Plan& plan,
                                                                 model::OperatorRange unit, int segment) {
    Shape& shape = shape_of(plan);
    const std::lock_guard lock(shape.guard);
    return passes(shape, plan, unit, segment).collectives;
}

const sim::ComputeCost* StageCollection::prices(const schedule::Plan& plan, int segment) {
    Shape& shape = shape_of(plan);
    const std::lock_guard lock(shape.guard);
    return compute_cost(shape, plan, segment);
}

core::Seconds StageCollection::update(const schedule::Plan& plan, double elements) {
    Shape& shape = shape_of(plan);
    const std::lock_guard lock(shape.guard);
    const sim::ComputeCost* compute = compute_cost(shape, plan, 0);
    if (!compute) return core::Seconds(0);
    const auto count = static_cast<std::int64_t>(elements);
    return compute->update_norm(count).device + compute->optimizer_step(count, 1).device;
}

core::Bytes StageCollection::smallest_boundary(const schedule::Plan& plan) {
    Shape& shape = shape_of(plan);
    const std::lock_guard lock(shape.guard);
    const auto [entry, is_new] = shape.smallest_boundaries.try_emplace(plan.passes_per_micro_batch());
    if (!is_new) return entry->second;
    const model::CostContext context = plan.cost_context();
    std::optional<core::Bytes> smallest;
    for (std::size_t unit = 1; unit < graph_.units.size(); ++unit) {
        core::Bytes bytes;
        for (const model::TensorId tensor :
             model::tensors_crossing(graph_, graph_.units[unit].operators.begin))
            bytes += model::tensor_bytes(graph_of(plan, 0), tensor, context);
        smallest = smallest ? std::min(*smallest, bytes) : bytes;
    }
    return entry->second = smallest.value_or(core::Bytes(0));
}

namespace {

// Activations of a stage that may be offloaded: of the first u layers together, and of the largest of them.
struct Leaving {
    core::Bytes bytes, largest;
    std::int64_t copies = 0;
};
std::vector<Leaving> leaving_of(const schedule::ActivationFootprint& footprint) {
    std::vector<Leaving> sums(1);
    for (const schedule::ActivationFootprint::UnitSaved& unit : footprint.offloadable) {
        const Leaving& before = sums.back();
        sums.push_back({before.bytes + unit.bytes, std::max(before.largest, unit.bytes),
                        before.copies + (unit.bytes.value > 0 ? 1 : 0)});
    }
    return sums;
}

// Number of layers of a stage whose activations are offloaded in each of its passes
// (schedule/pass/axis/offload.cpp), by stage and micro-batch. Layers run backward in reverse, so the first
// ones wait longest. A task of a rank is a pass through one layer.
class UnitsLeaving {
public:
    UnitsLeaving(const schedule::Schedule& order, int rank, int horizon,
                 const std::vector<std::vector<Leaving>>& leaving)
        : micro_batches_(order.micro_batches) {
        first_of_.assign(order.stages, 0);
        for (int s = 0; s < order.stages; ++s)
            if (schedule::rank_of_stage(order, s) == rank) {
                first_of_[s] = std::ssize(count_);
                count_.resize(count_.size() + micro_batches_);
            }
        std::int64_t task = 0;
        for (const schedule::Action& action : order.actions[rank]) {
            if (action.kind != schedule::ActionKind::forward && !schedule::is_backward_part(action.kind))
                continue;
            const std::int64_t units = std::ssize(leaving[action.stage]) - 1;
            std::int64_t& count = count_[index_of(action)];
            if (action.kind == schedule::ActionKind::forward) count = task;  // until backward is met
            else if (action.kind != schedule::ActionKind::backward_weight) {
                const std::int64_t forward = count;
                count = 0;
                while (count < units && schedule::leaves(forward + count, task + units - 1 - count, horizon))
                    ++count;
            }
            task += units;
        }
    }
    std::size_t of(const schedule::Action& action) const { return count_[index_of(action)]; }

private:
    std::size_t index_of(const schedule::Action& action) const {
        return first_of_[action.stage] + action.micro_batch;
    }

    int micro_batches_;
    std::vector<std::int64_t> first_of_, count_;
};

}  // namespace

const std::vector<RankActivations>& StageCollection::activations(const schedule::Plan& plan,
                                                                 const schedule::Schedule& order) {
    Shape& shape = shape_of(plan);
    const bool offloads = plan.offload != schedule::Offload::none;
    return made_once(shape, shape.activations,
                     std::pair(&order, offloads ? plan.activation_loading_horizon : 0),
                     [&] { return activations(shape, plan, order, *stages(plan)); });
}

std::vector<RankActivations> StageCollection::activations(const schedule::Plan& plan,
                                                          const schedule::Schedule& order,
                                                          const std::vector<model::OperatorRange>& ranges) {
    return activations(shape_of(plan), plan, order, ranges);
}

std::vector<RankActivations> StageCollection::activations(Shape& shape, const schedule::Plan& plan,
                                                          const schedule::Schedule& order,
                                                          const std::vector<model::OperatorRange>& ranges) {
    const bool offloads = plan.offload != schedule::Offload::none;
    std::vector<RankActivations> ranks;
    const int passes = plan.passes_per_micro_batch(), last = passes - 1;
    std::vector<const schedule::ActivationFootprint*> by_stage;  // and segment
    std::vector<std::vector<Leaving>> leaving;
    {
        const std::lock_guard lock(shape.guard);
        for (const model::OperatorRange range : ranges)
            for (int segment = 0; segment < passes; ++segment)
                by_stage.push_back(&footprint(shape, plan, range, segment));
    }
    for (std::size_t s = 1; s <= ranges.size(); ++s) leaving.push_back(leaving_of(*by_stage[s * passes - 1]));
    for (int rank = 0; rank < order.ranks; ++rank) {
        std::optional<UnitsLeaving> units;
        if (offloads) units.emplace(order, rank, plan.activation_loading_horizon, leaving);
        RankActivations result;
        core::Bytes held;
        for (const schedule::Action& action : order.actions[rank]) {
            const std::size_t stage = action.stage;
            const auto of_segment = [&](int segment) -> const schedule::ActivationFootprint& {
                return *by_stage[stage * passes + segment];
            };
            const schedule::ActivationFootprint& f = of_segment(action.segment);
            const Leaving away = units ? leaving[stage][units->of(action)] : Leaving{};
            switch (action.kind) {
                case schedule::ActionKind::forward:
                    held += f.saved - away.bytes;
                    result.peak = std::max(result.peak, held + f.forward_transient + away.largest);
                    result.offloaded += away.bytes;
                    result.copies += away.copies;
                    break;
                case schedule::ActionKind::backward:
                    // The last segment leaves gradients for the keys and values of the earlier ones, partly
                    // where its own activations were; they go with these.
                    if (last > 0 && action.segment == last) held += f.key_value_gradient * last - f.reused;
                    result.peak = std::max(result.peak, held + f.backward_transient + away.largest);
                    held -= f.saved - away.bytes;
                    if (last > 0)
                        held += action.segment == last ? f.reused
                                                       : core::Bytes(0) - of_segment(last).key_value_gradient;
                    break;
                case schedule::ActionKind::backward_input:
                    held += f.kept_for_weight;
                    result.peak = std::max(result.peak, held + (units ? away.largest : f.input_transient));
                    held -= f.saved - away.bytes -
                            f.saved_for_weight;  // activations loaded for weight gradients stay
                    break;
                case schedule::ActionKind::backward_weight:
                    result.peak = std::max(result.peak, held + f.weight_transient);
                    held -= f.saved_for_weight + f.kept_for_weight;
                    break;
                case schedule::ActionKind::recompute:
                case schedule::ActionKind::send_forward:
                case schedule::ActionKind::receive_forward:
                case schedule::ActionKind::send_backward:
                case schedule::ActionKind::receive_backward:
                case schedule::ActionKind::unshard:
                case schedule::ActionKind::reshard:
                case schedule::ActionKind::reduce_gradient:
                case schedule::ActionKind::optimizer_step: break;  // these cells hold no activations
            }
        }
        ranks.push_back(result);
    }
    return ranks;
}

const std::vector<schedule::StateElements>& StageCollection::state_elements(const schedule::Plan& plan,
                                                                            const schedule::Schedule& order) {
    Shape& shape = shape_of(plan);
    return made_once(shape, shape.state_elements, &order,
                     [&] { return state_elements(plan, order, *stages(plan)); });
}

std::vector<schedule::StateElements> StageCollection::state_elements(
    const schedule::Plan& plan, const schedule::Schedule& order,
    const std::vector<model::OperatorRange>& ranges) const {
    std::vector<std::vector<model::OperatorRange>> mine(order.ranks);
    for (int s = 0; s < order.stages; ++s) mine[schedule::rank_of_stage(order, s)].push_back(ranges[s]);
    std::vector<schedule::StateElements> elements;
    for (const std::vector<model::OperatorRange>& of_rank : mine)
        elements.push_back(schedule::state_elements(graph_, of_rank, plan));
    return elements;
}

schedule::StateElements StageCollection::parameter_count(const schedule::Plan& plan,
                                                         model::OperatorRange range) {
    ParameterCount count;
    {
        const std::lock_guard lock(guard_);
        const auto [entry, is_new] = parameter_counts_.try_emplace({range.begin, range.end});
        if (is_new) {
            entry->second.all = static_cast<double>(model::parameter_count(graph_, range));
            for (std::int32_t i = range.begin; i < range.end; ++i)
                for (const model::ParameterId id : graph_.operators[i].parameters)
                    if (graph_.parameter(id).is_expert)
                        entry->second.experts +=
                            static_cast<double>(model::element_count(graph_.parameter(id).shape));
        }
        count = entry->second;
    }
    const int tensor = plan.layout.tensor, expert = plan.layout.expert;
    if (expert == 1) return {count.all / tensor, 0};
    return {(count.all - count.experts) / tensor, count.experts / tensor / expert};
}

// Lowering divides the parameters of a rank among buckets stage by stage: the rest of the model, on other
// ranks, only tells which of them are tied.
const std::vector<StageCollection::Bucket>& StageCollection::buckets(const schedule::Plan& plan,
                                                                     model::OperatorRange stage) {
    const model::OperatorRange like = repetition_.first_like(stage);
    const std::lock_guard lock(guard_);
    const auto [entry, is_new] = buckets_.try_emplace(
        {plan.layout.tensor, plan.layout.expert, plan.sequence_parallel,
         plan.shards(schedule::Sharding::parameters), plan.gradient_bucket.value, like.begin, like.end});
    if (!is_new) return entry->second;
    std::vector<schedule::StageInfo> stages;
    const auto add = [&](std::int32_t begin, std::int32_t end, int rank) {
        if (begin == end) return;
        schedule::StageInfo& info = stages.emplace_back();
        info.operators = {begin, end};
        info.rank = rank;
    };
    add(0, like.begin, 1);
    add(like.begin, like.end, 0);
    add(like.end, static_cast<std::int32_t>(graph_.operators.size()), 1);
    std::map<std::pair<std::int64_t, bool>, int> counts;
    for (const schedule::ParameterBucket& bucket : schedule::buckets_of_rank(graph_, plan, stages, 0).buckets)
        if (bucket.tied_ranks.empty()) ++counts[{bucket.elements, bucket.is_expert}];
    for (const auto& [what, count] : counts) entry->second.push_back({what.first, what.second, count});
    return entry->second;
}

double StageCollection::largest_parameter(const schedule::Plan& plan) const {
    const model::CostContext context = plan.cost_context();
    std::int64_t largest = 0;
    for (const std::int32_t i : core::indices(graph_.parameters))
        largest = std::max(largest, model::parameter_elements(graph_, model::ParameterId(i), context));
    return double(largest);
}

double StageCollection::tied_elements(const schedule::Plan& plan) const {
    double elements = 0;
    for (const model::TiedParameter& parameter : tied_)
        elements += double(model::element_count(graph_.parameter(parameter.parameter).shape)) *
                    double(parameter.units.size());
    return elements / plan.layout.tensor;
}

const std::vector<RankParameters>& StageCollection::rank_parameters(const schedule::Plan& plan,
                                                                    const schedule::Schedule& order) {
    Shape& shape = shape_of(plan);
    return made_once(shape, shape.rank_parameters, &order,
                     [&] { return rank_parameters(plan, order, *stages(plan)); });
}

std::vector<RankParameters> StageCollection::rank_parameters(
    const schedule::Plan& plan, const schedule::Schedule& order,
    const std::vector<model::OperatorRange>& ranges) {
    std::vector<RankParameters> ranks(order.ranks);
    std::size_t unit = 0;
    for (int s = 0; s < order.stages; ++s) {
        const model::OperatorRange range = ranges[s];
        const int rank = schedule::rank_of_stage(order, s);
        RankParameters& of_rank = ranks[rank];
        const schedule::StateElements elements = parameter_count(plan, range);
        of_rank.dense += elements.dense;
        of_rank.experts += elements.experts;
        for (; unit < graph_.units.size() && graph_.units[unit].operators.end <= range.end; ++unit) {
            const schedule::StateElements of_unit = parameter_count(plan, graph_.units[unit].operators);
            of_rank.largest_unit = std::max(of_rank.largest_unit, of_unit.dense + of_unit.experts);
        }
    }
    return ranks;
}

StageCollection::TiedCopies StageCollection::copies_of(
    const model::TiedParameter& parameter, const schedule::Plan& plan, const schedule::Schedule& order,
    const std::function<int(std::int32_t unit)>& stage) const {
    TiedCopies copies;
    copies.elements = static_cast<double>(model::element_count(graph_.parameter(parameter.parameter).shape)) /
                      plan.layout.tensor;
    for (const std::int32_t unit : parameter.units)
        copies.ranks.push_back(schedule::rank_of_stage(order, stage(unit)));
    std::sort(copies.ranks.begin(), copies.ranks.end());
    copies.ranks.erase(std::unique(copies.ranks.begin(), copies.ranks.end()), copies.ranks.end());
    return copies;
}

std::vector<StageCollection::TiedCopies> StageCollection::tied_copies(
    const schedule::Plan& plan, const schedule::Schedule& order,
    const std::vector<model::OperatorRange>& ranges) const {
    std::vector<TiedCopies> all;
    for (const model::TiedParameter& parameter : tied_) {
        TiedCopies copies = copies_of(parameter, plan, order, [&](std::int32_t unit) {
            const std::int32_t begin = graph_.units[unit].operators.begin;
            const auto stage = std::find_if(ranges.begin(), ranges.end(),
                                            [&](model::OperatorRange range) { return begin < range.end; });
            return int(stage - ranges.begin());
        });
        if (copies.ranks.size() > 1) all.push_back(std::move(copies));
    }
    return all;
}

std::vector<StageCollection::TiedCopies> StageCollection::tied_ends(const schedule::Plan& plan,
                                                                    const schedule::Schedule& order) const {
    const std::vector<std::int32_t> ends = {0, core::count_of(graph_.units) - 1};
    std::vector<TiedCopies> all;
    for (const model::TiedParameter& parameter : tied_) {
        if (parameter.units != ends) continue;
        TiedCopies copies = copies_of(parameter, plan, order,
                                      [&](std::int32_t unit) { return unit == 0 ? 0 : order.stages - 1; });
        if (copies.ranks.size() > 1) all.push_back(std::move(copies));
    }
    return all;
}

}  // namespace planner
