#include "planner/stage_collection.h"

#include <algorithm>
#include <optional>

#include "core/diagnostics.h"
#include "core/index/integers.h"
#include "model/segment.h"
#include "model/whole_experts.h"
#include "schedule/pass/recompute.h"
#include "schedule/pass/stage_recipes.h"

namespace planner {

GradientHandling::GradientHandling(const schedule::Plan& plan)
    : accumulates(plan.micro_batches * plan.passes_per_micro_batch() > 1),
      is_sharded(plan.shards(schedule::Sharding::gradients)),
      is_reduced_whole(plan.layout.data > 1 && !plan.shards(schedule::Sharding::optimizer)) {}

StageCollection::StageCollection(const model::ModelGraph& graph, const cluster::DeviceSpec& device,
                                 const sim::CostConstants& constants, WorkMeter* work)
    : graph_(graph),
      work_(work),
      device_(device),
      constants_(constants),
      repetition_(graph),
      tied_(model::tied_parameters(graph)) {
    if (!model::whole_experts_unsupported(graph)) with_whole_experts_ = model::with_whole_experts(graph);
    for (const model::Unit& unit : graph.units) {
        unit_like_.push_back(repetition_.first_like(unit.operators));
        unit_parameters_.push_back(count_parameters(unit.operators));
    }
}
StageCollection::~StageCollection() = default;

namespace {

schedule::Plan with_all_again(const schedule::Plan& plan) {
    schedule::Plan all = with_nothing_again(plan);
    all.recompute = schedule::Recompute::full;
    return all;
}

}  // namespace

StageCollection::Shape& StageCollection::shape_of(const schedule::Plan& plan) {
    const std::lock_guard lock(guard_);
    std::unique_ptr<Shape>& shape =
        shapes_[{plan.layout.tensor, plan.layout.context, plan.layout.expert, plan.layout.expert_tensor(),
                 plan.micro_batch, recomputation_key(plan), plan.sequence_parallel, plan.tensor_overlap,
                 plan.context_communication}];
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

// Where the first layers of a stage run again, the rest of a unit's load is that of a plan where none does.
schedule::PartitionProblem StageCollection::balance_of(Shape& shape, const schedule::Plan& plan) {
    schedule::PartitionProblem balance;
    if (!plan.recomputes_some_layers()) {
        balance.load = unit_loads(shape, plan);
        return balance;
    }
    const auto loads_of = [&](const schedule::Plan& variant) {
        Shape& other = shape_of(variant);
        const std::lock_guard lock(other.guard);
        return unit_loads(other, variant);
    };
    balance.load = loads_of(with_nothing_again(plan));
    balance.again = loads_of(with_all_again(plan));
    balance.most_again = schedule::most_again(plan);
    for (std::size_t u = 0; u < balance.load.size(); ++u) {
        const core::Seconds once = balance.load[u];
        balance.again[u] = std::max(balance.again[u] - once, core::Seconds(0));
    }
    return balance;
}

schedule::PartitionProblem StageCollection::balance(const schedule::Plan& plan) {
    Shape& shape = shape_of(plan);
    const std::lock_guard lock(shape.guard);
    return balance_of(shape, plan);
}

const StageCollection::Division* StageCollection::division(Shape& shape, const schedule::Plan& plan) {
    const auto [entry, is_new] = shape.divisions.try_emplace(plan.stages());
    if (is_new) {
        std::optional<schedule::Partition> partition;
        if (!plan.partition.first_units.empty()) partition = plan.partition;
        else {
            if (shape.balance.load.empty()) shape.balance = balance_of(shape, plan);
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
    const model::ModelGraph& whole = planned(plan);
    if (count == 1) return whole;
    return known_graphs_.of(whole, count)[segment];
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
                                   repetition_.first_operators(), sim::PriceSums::few);
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

std::vector<StageCollection::Part> StageCollection::parts(const schedule::Plan& plan,
                                                          model::OperatorRange stage) const {
    const std::vector<model::OperatorRange> units = schedule::units_of(graph_, stage);
    const std::vector<char> run_again =
        schedule::recomputed_units(graph_, units, plan.recompute, plan.recompute_layers);
    std::int32_t end = stage.begin;
    for (std::size_t u = 0; u < units.size(); ++u)
        if (run_again[u]) end = units[u].end;
    std::vector<Part> parts;
    if (end > stage.begin) parts.push_back({with_all_again(plan), {stage.begin, end}});
    if (end < stage.end) parts.push_back({with_nothing_again(plan), {end, stage.end}});
    return parts;
}

// A pass through several units is one through each of them.
StageCost StageCollection::compute(const schedule::Plan& plan, model::OperatorRange stage, int segment) {
    if (plan.recompute_layers > 0) {
        StageCost cost;
        for (const auto& [part, operators] : parts(plan, stage))
            cost.add(compute(part, operators, segment), 1);
        return cost;
    }
    Shape& shape = shape_of(plan);
    const std::lock_guard lock(shape.guard);
    const model::OperatorRange like = repetition_.first_like(stage);
    const auto [entry, is_new] =
        prices_of(shape, plan)
            .stages.try_emplace({like.begin, like.end, {plan.passes_per_micro_batch(), segment}});
    StageCost& cost = entry->second;
    if (!is_new) return cost;
    for (const auto& [operators, count] : distinct_units(like))
        cost.add(passes(shape, plan, operators, segment).cost, count);
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

}  // namespace planner
