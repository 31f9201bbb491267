#include "sim/priced_partition.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

#include "core/diagnostics.h"
#include "core/index/integers.h"
#include "schedule/pass/lower.h"
#include "schedule/pass/recompute.h"
#include "schedule/pass/stage_recipes.h"
#include "schedule/plan/memory.h"
#include "schedule/plan/partition.h"
#include "sim/cost/framework/device_memory.h"
#include "sim/engine/schedule_timing.h"

namespace sim {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// Rounds over the pipeline after which a schedule repeats itself; further micro-batches are counted at the
// busiest rank's time.
constexpr int settled_rounds = 4;
// Actions replayed for one partition: some tens of milliseconds.
constexpr double most_replayed_actions = 5e6;

using Cuts = std::vector<std::int32_t>;

// Sums over units of what a stage of them takes and holds.
struct Prefix {
    UnitPass forward, backward, backward_input;
    core::Bytes state, saved;
};

UnitPass operator+(UnitPass a, UnitPass b) { return {a.device + b.device, a.host + b.host}; }
UnitPass operator-(UnitPass a, UnitPass b) { return {a.device - b.device, a.host - b.host}; }
Prefix operator+(const Prefix& a, const Prefix& b) {
    return {a.forward + b.forward, a.backward + b.backward, a.backward_input + b.backward_input,
            a.state + b.state, a.saved + b.saved};
}
Prefix operator-(const Prefix& a, const Prefix& b) {
    return {a.forward - b.forward, a.backward - b.backward, a.backward_input - b.backward_input,
            a.state - b.state, a.saved - b.saved};
}
core::Seconds slower(UnitPass pass) { return std::max(pass.device, pass.host); }

class PricedPartition {
public:
    PricedPartition(const schedule::Plan& plan, const model::ModelGraph& graph,
                    const cluster::Cluster& cluster, CostModels& costs);
    std::optional<schedule::Partition> fastest();
    // From the fastest to the leanest stages; a division that several limits lead to stands once.
    std::vector<schedule::Partition> fastest_to_leanest();

private:
    std::size_t stages() const { return plan_.stages(); }
    std::size_t units() const { return graph_.units.size(); }
    std::vector<Prefix> sums_of_units(const schedule::Plan& plan) const;
    Prefix stage(std::size_t s, std::size_t begin, std::size_t end) const {
        const Prefix once = prefix_[end] - prefix_[begin];
        if (most_again_.empty()) return once;
        const std::size_t most = most_again_[most_again_.size() > 1 ? s : 0];
        const std::size_t first = before_[begin], last = std::min(before_[end], first + most);
        return once + (again_[last] - again_[first]);
    }
    double time(std::size_t s, std::size_t begin, std::size_t end) const {
        const Prefix sum = stage(s, begin, end);
        return (slower(sum.forward) + slower(sum.backward)).value;
    }
    // Of one stage; ranks with several add them up.
    double memory(std::size_t s, std::size_t begin, std::size_t end) const {
        const Prefix sum = stage(s, begin, end);
        return sum.state.value + sum.saved.value * in_flight_[s];
    }
    std::size_t end_of(const Cuts& cuts, std::size_t s) const {
        return s + 1 < cuts.size() ? static_cast<std::size_t>(cuts[s + 1]) : units();
    }
    double fullest_stage(const Cuts& cuts) const;
    double fullest_rank(const Cuts& cuts) const;
    std::optional<Cuts> least_busy_within(double limit_of_a_stage) const;
    // Between the bytes that the least busy division needs and those of the leanest (weight 1); weight 0:
    // none.
    double limit_of_a_stage(double weight);
    Cuts fastest_by(double weight);
    void make_order();
    void count_in_flight();
    // Smaller is better: when the plan's order ends, then how uneven the stages are.
    std::pair<double, double> judge(const Cuts& cuts, std::vector<double>& scratch) const;
    void move_cuts(Cuts& cuts, double limit_of_a_stage) const;

    const schedule::Plan& plan_;
    const model::ModelGraph& graph_;
    const cluster::Cluster& cluster_;
    CostModels& costs_;
    std::vector<Prefix> prefix_;
    // With recompute_layers `prefix_` is of units that run once, and this of what running again adds, over
    // the units that can; and how many of those there are before each unit, and run again of each stage.
    std::vector<Prefix> again_;
    std::vector<std::size_t> before_, most_again_;
    std::optional<schedule::Schedule> order_;                  // of enough micro-batches
    std::optional<ReplayOrder> replay_;                        // of whole sequences on several ranks
    std::vector<double> in_flight_;                            // micro-batches that a stage keeps
    std::vector<core::Bytes> crossing_;                        // the boundary after each unit but the last
    std::optional<std::pair<double, double>> fullest_stages_;  // of the leanest and the least busy division
};

PricedPartition::PricedPartition(const schedule::Plan& plan, const model::ModelGraph& graph,
                                 const cluster::Cluster& cluster, CostModels& costs)
    : plan_(plan), graph_(graph), cluster_(cluster), costs_(costs) {
    if (!plan.recomputes_some_layers()) {
        prefix_ = sums_of_units(plan);
    } else {
        most_again_ = schedule::most_again(plan);
        schedule::Plan variant = plan;
        variant.recompute_layers = 0;
        variant.recompute_layers_by_stage = {};
        const std::vector<Prefix> twice = sums_of_units(variant);
        variant.recompute = schedule::Recompute::none;
        prefix_ = sums_of_units(variant);
        const std::vector<char> can_run_again = schedule::recomputed_units(graph, schedule::Recompute::full);
        again_.emplace_back();
        before_.push_back(0);
        for (std::size_t u = 0; u < units(); ++u) {
            const Prefix more = (twice[u + 1] - twice[u]) - (prefix_[u + 1] - prefix_[u]);
            if (can_run_again[u]) again_.push_back(again_.back() + more);
            before_.push_back(again_.size() - 1);
        }
    }
    for (std::size_t u = 1; u < graph.units.size(); ++u) {
        core::Bytes& bytes = crossing_.emplace_back();
        for (const model::TensorId tensor : model::tensors_crossing(graph, graph.units[u].operators.begin))
            bytes += model::tensor_bytes(graph, tensor, plan.cost_context());
    }
    make_order();
    count_in_flight();
}

std::vector<Prefix> PricedPartition::sums_of_units(const schedule::Plan& plan) const {
    std::vector<Prefix> sums(1);
    const std::vector<UnitPrice> prices = unit_prices(plan, graph_, costs_);
    for (std::size_t u = 0; u < prices.size(); ++u) {
        const model::OperatorRange range = graph_.units[u].operators;
        const schedule::StateFootprint state = schedule::state_footprint(graph_, range, plan);
        sums.push_back(sums.back() + Prefix{prices[u].forward, prices[u].backward, prices[u].backward_input,
                                            state.sum(),
                                            schedule::activation_footprint(graph_, range, plan).saved});
    }
    return sums;
}

void PricedPartition::make_order() {
    const int p = plan_.layout.pipeline, most = settled_rounds * p;
    if (p == 1) return;
    core::Diagnostics unneeded;
    const int short_step =
        plan_.micro_batches <= most ? plan_.micro_batches : most - p + plan_.micro_batches % p;
    order_ = schedule::make_schedule(plan_, unneeded, short_step);
    if (!order_) order_ = schedule::make_schedule(plan_, unneeded);
    if (!order_ || order_->directions > 1 || order_->stages != plan_.stages()) order_.reset();
    if (!order_) return;
    // As lowering runs them: one after the other.
    for (std::vector<schedule::Action>& actions : order_->actions)
        for (schedule::Action& action : actions) action.overlaps_next = false;
    if (!order_->cuts_sequences() && order_->ranks > 1) replay_.emplace(*order_);
}

void PricedPartition::count_in_flight() {
    in_flight_.assign(stages(), 1);
    if (!order_) return;
    std::vector<double> held(stages(), 0);
    const auto a_part = 1.0 / std::max(1, order_->passes_per_micro_batch());
    const bool splits = std::any_of(
        order_->actions[0].begin(), order_->actions[0].end(),
        [](const schedule::Action& a) { return a.kind == schedule::ActionKind::backward_weight; });
    for (const std::vector<schedule::Action>& actions : order_->actions)
        for (const schedule::Action& action : actions) {
            const std::size_t s = action.stage;
            if (action.kind == schedule::ActionKind::forward) held[s] += a_part;
            else if (action.kind == schedule::ActionKind::backward ||
                     (splits && action.kind == schedule::ActionKind::backward_weight))
                held[s] -= a_part;
            in_flight_[s] = std::max(in_flight_[s], held[s]);
        }
}

double PricedPartition::fullest_stage(const Cuts& cuts) const {
    double most = 0;
    for (std::size_t s = 0; s < cuts.size(); ++s) most = std::max(most, memory(s, cuts[s], end_of(cuts, s)));
    return most;
}

double PricedPartition::fullest_rank(const Cuts& cuts) const {
    if (!order_) return fullest_stage(cuts);
    std::vector<double> ranks(order_->ranks, 0);
    for (const std::int32_t s : core::indices(cuts))
        ranks[schedule::rank_of_stage(*order_, s)] += memory(s, cuts[s], end_of(cuts, s));
    return *std::max_element(ranks.begin(), ranks.end());
}

std::optional<Cuts> PricedPartition::least_busy_within(double limit_of_a_stage) const {
    const auto load = [&](std::size_t s, std::size_t i, std::size_t j) {
        return memory(s, i, j) > limit_of_a_stage ? infinity : time(s, i, j);
    };
    std::optional<schedule::Partition> partition = schedule::partition_by_place(units(), stages(), load);
    if (!partition) return std::nullopt;
    return std::move(partition->first_units);
}

std::pair<double, double> PricedPartition::judge(const Cuts& cuts, std::vector<double>& scratch) const {
    ScheduleCosts costs;
    costs.stages.clear();
    std::vector<double> ranks(order_->ranks, 0);
    double squares = 0;
    for (const std::int32_t s : core::indices(cuts)) {
        const Prefix times = stage(s, cuts[s], end_of(cuts, s));
        StageCost& cost = costs.stages.emplace_back();
        cost.forward = slower(times.forward);
        cost.backward_input = std::min(slower(times.backward_input), slower(times.backward));
        cost.backward_weight = slower(times.backward) - cost.backward_input;
        const double load = (cost.forward + cost.backward_input + cost.backward_weight).value;
        ranks[schedule::rank_of_stage(*order_, s)] += load;
        squares += load * load;
        if (s == 0) continue;
        const int from = schedule::rank_of_stage(*order_, s - 1), to = schedule::rank_of_stage(*order_, s);
        const core::Bytes bytes = crossing_[cuts[s] - 1];
        costs.transfers.push_back(
            from == to ? core::Seconds(0)
                       : costs_.communication.transfer(from, to, bytes, schedule::PayloadKind::activation));
    }
    const double further = static_cast<double>(plan_.micro_batches) - order_->micro_batches;
    const double end = replay_->replay(costs, scratch).makespan.value;
    return {end + further * *std::max_element(ranks.begin(), ranks.end()), squares};
}

// Every cut by itself, and every run of cuts from one to the last, by up to three units, as long as one of
// the moves is for the better.
void PricedPartition::move_cuts(Cuts& cuts, double limit_of_a_stage) const {
    constexpr int furthest = 3;
    std::vector<double> scratch;
    double left = most_replayed_actions;
    const double actions = 3.0 * plan_.stages() * order_->micro_batches;
    std::pair<double, double> best = judge(cuts, scratch);
    const auto is_allowed = [&](const Cuts& moved) {
        // Every stage has a unit: only then do the others' ranges exist.
        if (std::adjacent_find(moved.begin(), moved.end(), std::greater_equal<>()) != moved.end() ||
            std::cmp_greater_equal(moved.back(), units()))
            return false;
        for (std::size_t s = 0; s < moved.size(); ++s)
            if (memory(s, moved[s], end_of(moved, s)) > limit_of_a_stage) return false;
        return true;
    };
    for (bool has_moved = true; has_moved && left > 0;) {
        has_moved = false;
        for (std::size_t c = 1; c < cuts.size(); ++c)
            for (const bool takes_the_rest : {false, true})
                for (int step = -furthest; step <= furthest && left > 0; ++step) {
                    if (step == 0 || (takes_the_rest && c + 1 == cuts.size())) continue;
                    Cuts moved = cuts;
                    for (std::size_t k = c; k < (takes_the_rest ? cuts.size() : c + 1); ++k) moved[k] += step;
                    if (!is_allowed(moved)) continue;
                    left -= actions;
                    const std::pair<double, double> value = judge(moved, scratch);
                    if (!(value < best)) continue;
                    best = value;
                    cuts = std::move(moved);
                    has_moved = true;
                }
    }
}

double PricedPartition::limit_of_a_stage(double weight) {
    if (weight == 0) return infinity;
    if (!fullest_stages_) {
        const std::optional<schedule::Partition> leanest = schedule::partition_by_place(
            units(), stages(), [&](std::size_t s, std::size_t i, std::size_t j) { return memory(s, i, j); });
        fullest_stages_ = {fullest_stage(leanest->first_units), fullest_stage(*least_busy_within(infinity))};
    }
    const auto [least, most] = *fullest_stages_;
    return std::max(least, least + (1 - weight) * (most - least));
}

Cuts PricedPartition::fastest_by(double weight) {
    const double limit = limit_of_a_stage(weight);
    Cuts cuts = *least_busy_within(limit);
    if (replay_) move_cuts(cuts, limit);
    return cuts;
}

std::optional<schedule::Partition> PricedPartition::fastest() {
    if (units() < stages()) return std::nullopt;
    const cluster::DeviceSpec& device = cluster_.instance.device;
    const core::Bytes outside =
        device.has_concurrent_streams ? least_outside_memory(plan_, 0, cluster_) : core::Bytes(0);
    const double available = (device.memory - outside).value;
    // As much memory as is asked for by the fastest that fits.
    constexpr std::array weights = {0.0, 0.25, 0.5, 0.75, 0.9, 1.0};
    double chosen = 0;
    for (const double weight : weights) {
        chosen = weight;
        if (fullest_rank(*least_busy_within(limit_of_a_stage(weight))) <= available) break;
    }
    return schedule::Partition{fastest_by(chosen)};
}

std::vector<schedule::Partition> PricedPartition::fastest_to_leanest() {
    std::vector<schedule::Partition> partitions;
    if (units() < stages()) return partitions;
    constexpr int parts = 10;
    for (int part = 0; part <= parts; ++part) {
        schedule::Partition next{fastest_by(part / double{parts})};
        if (std::find(partitions.begin(), partitions.end(), next) == partitions.end())
            partitions.push_back(std::move(next));
    }
    return partitions;
}

// The fastest whose peak the weight allows. Nothing where one of them cannot be simulated.
std::optional<schedule::Partition> choose_by_peak(std::vector<schedule::Partition> partitions, double weight,
                                                  const TryPartition& try_partition) {
    struct Tried {
        schedule::Partition partition;
        PartitionTrial trial;
    };
    std::vector<Tried> tried;
    for (schedule::Partition& partition : partitions) {
        const std::optional<PartitionTrial> trial = try_partition(partition);
        if (!trial) return std::nullopt;
        tried.push_back({std::move(partition), *trial});
    }
    const auto fits = [](const Tried& one) { return one.trial.fits; };
    if (std::any_of(tried.begin(), tried.end(), fits)) std::erase_if(tried, std::not_fn(fits));
    if (tried.empty()) return std::nullopt;
    std::stable_sort(tried.begin(), tried.end(), [](const Tried& a, const Tried& b) {
        return std::pair(a.trial.step, a.trial.peak) < std::pair(b.trial.step, b.trial.peak);
    });
    const core::Bytes most = tried.front().trial.peak;
    core::Bytes least = most;
    for (const Tried& one : tried) least = std::min(least, one.trial.peak);
    const core::Bytes limit = std::max(least, least + (1 - weight) * (most - least));
    return std::find_if(tried.begin(), tried.end(), [&](const Tried& one) { return one.trial.peak <= limit; })
        ->partition;
}

}  // namespace

std::vector<UnitPrice> unit_prices(const schedule::Plan& plan, const model::ModelGraph& graph,
                                   CostModels& costs) {
    std::vector<UnitPrice> prices;
    for (const model::Unit& unit : graph.units) {
        const schedule::StageRecipes recipes(plan, graph, unit.operators);
        const auto add = [&](const schedule::Recipe& recipe, UnitPass& pass) {
            for (const schedule::Step& step : recipe) {
                // Of pieces all but the last are exchanged beside products.
                if (step.kind == schedule::Step::Kind::collective && !step.starts_early &&
                    step.piece + 1 == step.pieces)
                    pass.device += costs.communication.collective(step.collective, step.group, step.bytes, 0);
                if (step.kind != schedule::Step::Kind::compute) continue;
                const ComputePrice price =
                    costs.compute.price(step.operators, step.phase, step.piece, step.pieces);
                pass.device += price.device + price.blocked;
                pass.host += price.host + price.blocked;
            }
        };
        UnitPrice& price = prices.emplace_back();
        add(recipes.of(schedule::ComputePhase::forward), price.forward);
        add(recipes.of(schedule::ComputePhase::backward), price.backward);
        add(recipes.of(schedule::ComputePhase::backward_input), price.backward_input);
    }
    return prices;
}

std::optional<schedule::Partition> complete_partition(const schedule::Plan& plan,
                                                      const model::ModelGraph& graph,
                                                      const cluster::Cluster& cluster, CostModels& costs,
                                                      const TryPartition& try_partition) {
    if (!plan.partition.first_units.empty()) return plan.partition;
    PricedPartition priced(plan, graph, cluster, costs);
    std::optional<schedule::Partition> partition;
    if (plan.memory_weight > 0 && plan.stages() > 1)
        partition = choose_by_peak(priced.fastest_to_leanest(), plan.memory_weight, try_partition);
    return partition ? partition : priced.fastest();
}

}  // namespace sim
