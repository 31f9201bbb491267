// Plans beside the space whose stages differ in how many of their layers run again: of those that are too
// large for memory with nothing run again. The first stages of a pipeline hold most micro-batches and run
// most again; later ones take over some of their layers (AdaPipe, ASPLOS 2024).
#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <string>

#include "core/diagnostics.h"
#include "core/errors.h"
#include "core/index/integers.h"
#include "planner/partition/partitions.h"
#include "planner/search/search_state.h"

namespace planner {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
// What stages hold and where they are cut depend on each other: so often both are found in turn.
constexpr int rounds = 3;
// Of the plans of each schedule that are too large, so many get layers of their own, by what they seem to be
// worth, and so many of these become entries, by their bounds.
constexpr std::size_t most_by_stage = 24, most_entries = 2;
// Of one partition, simulations that found it too large.
constexpr int most_overflows = 4;

using Layers = std::vector<std::int32_t>;

// So many of the layers of some stages together, those of the first ones first: what passes them first waits
// longest for its backward.
void share_out(int layers, const std::vector<int>& stages, const Layers& held, Layers& again) {
    for (const int s : stages) {
        again[std::size_t(s)] = std::min(layers, held[std::size_t(s)]);
        layers -= again[std::size_t(s)];
    }
}

// The fewest that are enough, of up to `most`, where more are no worse; -1: not even those are.
template <class IsEnough>
int fewest(int most, IsEnough is_enough) {
    if (is_enough(0)) return 0;
    if (!is_enough(most)) return -1;
    int too_few = 0;
    while (most - too_few > 1) {
        const int middle = (too_few + most) / 2;
        (is_enough(middle) ? most : too_few) = middle;
    }
    return most;
}

std::vector<int> stages_of(const schedule::Schedule& order, int rank) {
    std::vector<int> stages;
    for (int s = 0; s < order.stages; ++s)
        if (schedule::rank_of_stage(order, s) == rank) stages.push_back(s);
    return stages;
}

schedule::Plan with_layers(schedule::Plan plan, Layers layers) {
    const bool runs_any = std::any_of(layers.begin(), layers.end(), [](std::int32_t of) { return of > 0; });
    plan.recompute = runs_any ? schedule::Recompute::full : schedule::Recompute::none;
    plan.recompute_layers = 0;
    plan.recompute_layers_by_stage = runs_any ? std::move(layers) : Layers();
    return plan;
}

// Stages as sums over their units: what they take and hold with their first layers run again. Of plans with
// one stage a rank.
class StageSums {
public:
    StageSums(Bounds& bounds, StageCollection& stages, const std::vector<int>& layers_before,
              const schedule::Plan& plan)
        : kept_(bounds.kept(plan)), fragmentation_(bounds.fragmentation()) {
        const schedule::Plan once = with_nothing_again(plan);
        schedule::Plan twice = once;
        twice.recompute = schedule::Recompute::full;
        const std::vector<core::Seconds> load = stages.balance(once).load, all = stages.balance(twice).load;
        const std::vector<model::Unit>& units = stages.graph().units;
        for (std::size_t u = 0; u < units.size(); ++u) {
            const model::OperatorRange range = units[u].operators;
            const Bounds::Saved kept = bounds.saved(once, range), less = bounds.saved(twice, range);
            once_.push_back(once_.back() + Sum{load[u].value, bounds.state(plan, range).value,
                                               kept.whole.value, kept.for_weights.value});
            if (layers_before[u + 1] > layers_before[u])
                again_.push_back(again_.back() + Sum{(all[u] - load[u]).value, 0,
                                                     (less.whole - kept.whole).value,
                                                     (less.for_weights - kept.for_weights).value});
            before_.push_back(again_.size() - 1);
        }
    }
    std::size_t units() const { return before_.size() - 1; }
    double load(std::size_t begin, std::size_t end, int layers) const { return sum(begin, end, layers).load; }
    double memory(std::size_t stage, std::size_t begin, std::size_t end, int layers) const {
        const Sum held = sum(begin, end, layers);
        double activations = 0;
        for (const Bounds::Kept& kept : kept_[stage])
            activations =
                std::max(activations, kept.whole * held.whole + kept.for_weights * held.for_weights);
        return held.state + activations * fragmentation_;
    }
    // The fewest layers within so many bytes; -1: not even all of them are enough.
    int layers_within(double room, std::size_t stage, std::size_t begin, std::size_t end) const {
        return fewest(int(before_[end] - before_[begin]),
                      [&](int layers) { return memory(stage, begin, end, layers) <= room; });
    }

private:
    struct Sum {
        double load = 0, state = 0, whole = 0, for_weights = 0;
        Sum operator+(const Sum& o) const {
            return {load + o.load, state + o.state, whole + o.whole, for_weights + o.for_weights};
        }
        Sum operator-(const Sum& o) const {
            return {load - o.load, state - o.state, whole - o.whole, for_weights - o.for_weights};
        }
    };
    Sum sum(std::size_t begin, std::size_t end, int layers) const {
        const std::size_t first = before_[begin], last = std::min(before_[end], first + std::size_t(layers));
        return once_[end] - once_[begin] + (again_[last] - again_[first]);
    }

    const std::vector<std::vector<Bounds::Kept>>& kept_;  // by stage
    double fragmentation_;
    std::vector<Sum> once_ = std::vector<Sum>(1), again_ = std::vector<Sum>(1);
    std::vector<std::size_t> before_ = {0};  // of the units that can run again
};

}  // namespace

// Of each stage, the layers that can run again.
std::vector<std::int32_t> Search::held_layers(const std::vector<model::OperatorRange>& ranges) const {
    Layers held;
    for (const model::OperatorRange stage : ranges)
        held.push_back(layers_before_[graph_.operators[stage.end - 1].unit + 1] -
                       layers_before_[graph_.operators[stage.begin].unit]);
    return held;
}

// Of the plan with these stages, the fewest with which each rank fits, as far as bounds tell; nothing where
// one does not with all.
std::optional<schedule::Plan> Search::with_needed_layers(const PartitionTask& task,
                                                         const schedule::Schedule& order) const {
    const std::vector<model::OperatorRange> ranges = ranges_of(graph_, task.plan.partition.first_units);
    const core::Bytes available = targets_[task.target].cluster.instance.device.memory;
    const Layers held = held_layers(ranges);
    Layers layers(ranges.size(), 0);
    for (int rank = 0; rank < order.ranks; ++rank) {
        const std::vector<int> stages = stages_of(order, rank);
        const auto fits_with = [&](int of_rank) {
            share_out(of_rank, stages, held, layers);
            work_.add(double(stages.size()), per_bounded_stage);
            const schedule::Plan plan = with_layers(task.plan, layers);
            return bounds_[task.layout]->bounds.peak_of(plan, order, ranges, rank) <= available;
        };
        int all = 0;
        for (const int s : stages) all += held[std::size_t(s)];
        const int needed = fewest(all, fits_with);
        if (needed < 0) return std::nullopt;
        share_out(needed, stages, held, layers);
    }
    return with_layers(task.plan, std::move(layers));
}

// The cuts with which the longest stage is shortest, each with as many layers run again as its memory asks
// for. Where ranks hold several stages, those that balance what runs again now.
std::optional<schedule::Partition> Search::cuts_for_layers(const PartitionTask& task,
                                                           const schedule::Schedule& order) const {
    schedule::Plan plan = task.plan;
    plan.partition = {};
    if (order.stages != order.ranks) {
        const schedule::Partition* const balanced = stages_[task.target]->partition(plan);
        return balanced ? std::optional(*balanced) : std::nullopt;
    }
    const double units = double(graph_.units.size());
    work_.add(units * units, per_place);
    GuardedBounds& guarded = *bounds_[task.layout];
    const std::vector<model::OperatorRange> ranges = ranges_of(graph_, task.plan.partition.first_units);
    std::vector<double> room;  // what sums of units may be: they leave out what a stage holds beside them
    std::optional<StageSums> sums;
    {
        const std::lock_guard lock(guarded.guard);
        sums.emplace(guarded.bounds, *stages_[task.target], layers_before_, plan);
    }
    const core::Bytes available = targets_[task.target].cluster.instance.device.memory;
    for (const std::int32_t s : core::indices(ranges)) {
        const std::size_t first = std::size_t(graph_.operators[ranges[s].begin].unit),
                          last = std::size_t(graph_.operators[ranges[s].end - 1].unit) + 1;
        const int layers = plan.recomputes_by_stage() ? plan.layers_again(s) : 0;
        const int rank = schedule::rank_of_stage(order, s);
        const double beside = guarded.bounds.peak_of(task.plan, order, ranges, rank).value -
                              sums->memory(std::size_t(s), first, last, layers);
        room.push_back(available.value - beside);
    }
    return schedule::partition_by_place(sums->units(), ranges.size(),
                                        [&](std::size_t s, std::size_t begin, std::size_t end) {
                                            const int layers = sums->layers_within(room[s], s, begin, end);
                                            return layers < 0 ? infinity : sums->load(begin, end, layers);
                                        });
}

// About the value of the plan with as many layers run again as its ranks lack memory for together; infinity
// where it has none.
double Search::estimate_by_stage(const Entry& entry) const {
    if (!may_recompute_some(entry) || entry.plan.recompute != schedule::Recompute::none ||
        entry.plan.layout.pipeline == 1 || entry.plan.passes_per_micro_batch() > 1)
        return infinity;
    const schedule::Schedule* const order = orders_.order(entry.plan);
    if (!order || order->directions > 1) return infinity;
    const double all = layers_before_.back();
    const core::Bytes a_layer = (entry.memory.peak - entry.memory.state) / (all / entry.plan.layout.pipeline);
    if (all == 0 || a_layer.value <= 0) return infinity;
    const double share = entry.memory.excess / a_layer / all;
    if (share > 1) return infinity;
    schedule::Plan full = entry.plan;
    full.recompute = schedule::Recompute::full;
    GuardedBounds& guarded = *bounds_[entry.layout];
    work_.add(1, per_estimate);
    const std::lock_guard lock(guarded.guard);
    const core::Seconds again = guarded.bounds.time_of_work(full) - guarded.bounds.time_of_work(entry.plan);
    return value_of(entry.target, entry.time_bound + again * share, core::Bytes(0));
}

// A plan that is too large, with its own partition and layers.
std::optional<Search::BoundedPlan> Search::with_layers_by_stage(const Entry& entry) const {
    const Target& target = targets_[entry.target];
    const schedule::Schedule* const order = orders_.order(entry.plan);
    Layers first(std::size_t(entry.plan.stages()), 0);
    first.front() = 1;
    if (target.runnable && target.runnable->may_take &&
        !target.runnable->may_take(with_layers(entry.plan, std::move(first))))
        return std::nullopt;
    PartitionTask task;
    task.target = entry.target;
    task.layout = entry.layout;
    task.plan = partitioned(entry);
    std::optional<schedule::Plan> best;
    core::Seconds least(infinity);
    for (int round = 0; round < rounds; ++round) {
        std::optional<schedule::Plan> plan = with_needed_layers(task, *order);
        if (plan && plan->recomputes_by_stage()) {
            const core::Seconds bound = time_bound(*plan, entry.layout);
            if (bound < least) best = plan;
            least = std::min(least, bound);
        }
        if (plan) task.plan = std::move(*plan);
        std::optional<schedule::Partition> partition = cuts_for_layers(task, *order);
        if (!partition || *partition == task.plan.partition) break;
        task.plan.partition = std::move(*partition);
    }
    const double value = best ? value_of(entry.target, least, core::Bytes(0)) : infinity;
    if (value >= best_value()) return std::nullopt;
    return BoundedPlan{std::move(*best), value};
}

// Of plans that are too large, those that seem best with layers of their own, as entries beside the space.
void Search::recompute_by_stage(const std::vector<std::vector<std::size_t>>& orders) {
    std::vector<std::pair<double, std::size_t>> likely;
    for (const std::vector<std::size_t>& order : orders)
        for (const std::size_t i : order)
            if (const double estimate = estimate_by_stage(entries_[i]); estimate < best_value())
                likely.emplace_back(estimate, i);
    // By schedule: bounds of one are not as close as those of another.
    const auto keep_first = [&](std::size_t most) {
        std::sort(likely.begin(), likely.end());
        std::map<std::string, std::size_t> kept;
        std::erase_if(likely,
                      [&](const auto& one) { return ++kept[entries_[one.second].plan.schedule] > most; });
    };
    keep_first(most_by_stage);
    std::vector<std::optional<BoundedPlan>> plans(likely.size());
    work_on(likely.size(),
            [&](std::size_t l) { plans[l] = with_layers_by_stage(entries_[likely[l].second]); });
    std::map<std::size_t, schedule::Plan> made;  // by their entries
    for (std::size_t l = 0; l < likely.size(); ++l) {
        likely[l].first = plans[l] ? plans[l]->bound : infinity;
        if (plans[l]) made.emplace(likely[l].second, std::move(plans[l]->plan));
    }
    keep_first(most_entries);
    const auto is_same_order = [&](const schedule::Plan& one, schedule::Plan other) {
        other.schedule = one.schedule;  // interleaved 1F1B of one stage a rank is 1F1B
        return one == other;
    };
    for (std::size_t l = 0; l < likely.size(); ++l) {
        const std::size_t i = likely[l].second;
        if (!made.contains(i)) continue;
        const bool is_known = l > 0 && likely[l].first == likely[l - 1].first &&
                              is_same_order(entries_[likely[l - 1].second].plan, entries_[i].plan);
        if (!is_known) add_recomputed(i, std::move(made[i]));
    }
}

core::Seconds Search::time_bound(const schedule::Plan& plan, std::size_t layout) const {
    work_.add(1, per_bounded_plan);
    work_.add(plan.stages(), per_bounded_stage);
    GuardedBounds& guarded = *bounds_[layout];
    const std::lock_guard lock(guarded.guard);
    return guarded.bounds.time(plan);
}

// Of a plan that a simulation found too large: more layers of the ranks that are, as many as what activations
// take by the layer. Nothing where one of them has no more.
std::optional<schedule::Plan> Search::with_more_layers(const schedule::Plan& plan,
                                                       const sim::Evaluation& evaluation) const {
    const schedule::Schedule* const order = orders_.order(plan);
    core::require(order != nullptr, "what was simulated has an order");
    const Layers held = held_layers(ranges_of(graph_, plan.partition.first_units));
    Layers layers = plan.recompute_layers_by_stage;
    layers.resize(held.size(), 0);
    for (const sim::ClassMemory& memory : evaluation.memory) {
        const core::Bytes excess = memory.peak - evaluation.available_memory;
        if (excess.value <= 0) continue;
        const std::vector<int> stages = stages_of(*order, memory.pipeline);
        int all = 0, again = 0;
        for (const int s : stages) {
            all += held[std::size_t(s)];
            again += layers[std::size_t(s)];
        }
        if (again >= all) return std::nullopt;
        const double a_layer = std::max(1.0, memory.activations.value / (all - again));
        const int more = std::max(1, int(std::min(excess.value / a_layer, double(all))));
        share_out(std::min(again + more, all), stages, held, layers);
    }
    if (layers == plan.recompute_layers_by_stage) return std::nullopt;
    return with_layers(plan, std::move(layers));
}

// The plan with its partition, and as many layers as that asks for. Where memory decides there is none: what
// all run again needs less.
std::optional<RankedPlan> Search::simulate_with_layers(const PartitionTask& task, core::Seconds limit) const {
    const schedule::Schedule* const order = times_plans() ? orders_.order(task.plan) : nullptr;
    std::optional<schedule::Plan> plan =
        order && order->directions == 1 ? with_needed_layers(task, *order) : std::nullopt;
    for (int overflows = 0; plan && overflows < most_overflows; ++overflows) {
        if (!is_run(targets_[task.target], *plan)) return std::nullopt;
        // Bounds of plans alike are of the partition that balances them.
        if (plan->recomputes_by_stage() && time_bound(*plan, task.layout) >= limit) return std::nullopt;
        RankedPlan ranked;
        ranked.candidate = task.target;
        ranked.plan = *plan;
        core::Diagnostics unpriced;
        const std::optional<Rejection> rejection = simulate_plan(ranked, unpriced);
        if (!rejection) return ranked;
        if (rejection != Rejection::simulated_peak) return std::nullopt;
        plan = with_more_layers(*plan, ranked.evaluation);
    }
    return std::nullopt;
}

}  // namespace planner
