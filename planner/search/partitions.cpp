#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "core/diagnostics.h"
#include "planner/refinement.h"
#include "planner/search/search_state.h"

namespace planner {

namespace {

// Too large with the partition that balances its stages, and not known to be with every one.
bool is_cramped(const Entry& entry) {
    return (entry.rejection == Rejection::activations || entry.rejection == Rejection::state) &&
           entry.memory.peak.value > 0;
}

// Of the first plan's value, for plans that are tried with another partition to begin with.
constexpr double most_behind_to_choose = 1.01;

}  // namespace

// Steps of this length or longer are no better than the value, or violate a constraint. Of an objective that
// no step tells of, the value.
core::Seconds Search::step_limit(std::size_t target, double value) const {
    const core::DollarsPerSecond rate = cluster::price(targets_[target].cluster);
    core::Seconds limit(value);
    if (request_.objective == Objective::cost) limit = core::Seconds(rate.value > 0 ? value / rate.value : 0);
    if (!request_.tokens) return limit;
    const double longer = std::nextafter(1.0, 2.0);  // the limits themselves are allowed
    if (request_.deadline) limit = std::min(limit, *request_.deadline / steps() * longer);
    if (request_.budget && rate.value > 0)
        limit = std::min(limit, core::Seconds(request_.budget->value / rate.value / steps() * longer));
    return limit;
}

// May every partition of it be looked at?
bool Search::is_divided(const Entry& entry) const {
    return may_be_divided(entry) && covers_every_partition(entry.plan, graph_.units.size());
}

bool Search::may_be_divided(const Entry& entry) const {
    return entry.plan.layout.pipeline > 1 && entry.plan.partition.first_units.empty() &&
           entry.plan.offload == targets_[entry.target].base.offload;
}

Search::PartitionTasks Search::partition_tasks() {
    PartitionTasks tasks;
    if (request_.objective == Objective::memory && !lacks_plan()) return tasks;
    for (std::size_t f = 0; f < families_.size(); ++f) {
        const core::Seconds bound = families_[f].time_bound;
        const bool is_beaten =
            !result_.plans.empty() && bound >= step_limit(groups_[families_[f].group].target, best_value());
        const Group& group = groups_[families_[f].group];
        if (!is_beaten && !group.is_made && is_late()) {
            // To enumerate it takes long, where it was not already: its bound stays open.
            if (families_[f].divided > 0)
                tasks.open.push_back({group.target, group.layout, families_[f].first, f, bound, bound, true});
            continue;
        }
        if (!is_beaten) {
            make_members(families_[f].group);
        } else if (!groups_[families_[f].group].is_made) {
            tasks.beaten += families_[f].divided;
            continue;
        }
        for (const std::size_t i : families_[f].members) {
            const Entry& entry = entries_[i];
            if (entry.rejection == Rejection::stages || !may_be_divided(entry)) continue;
            const bool covers_all = covers_every_partition(entry.plan, graph_.units.size());
            const PartitionTask task{
                .target = entry.target,
                .layout = entry.layout,
                .plan = entry.plan,
                .family = f,
                .family_bound = bound,
                .work_bound = bound,
                .likely = std::max(entry.bound, value_of(entry.target, bound, {})),
                .room = targets_[entry.target].cluster.instance.device.memory - entry.beyond_bound};
            if (is_beaten) tasks.beaten += covers_all ? 1 : 0;
            else if (covers_all) tasks.open.push_back(task);
            else if (is_cramped(entry) && entry.memory.beyond.value > 0) ++tasks.hardly_fitting;
            else if (is_cramped(entry)) tasks.cramped.push_back(task);
            else if (!entry.rejection)
                (has_partitions_to_explore(entry.plan, graph_.units.size()) ? tasks.explored : tasks.numerous)
                    .push_back(task);
        }
    }
    return tasks;
}

// Can its stages be divided in no other way?
bool Search::has_only_partition(const RankedPlan& ranked) const {
    const Target& target = targets_[ranked.candidate];
    return target.runnable && target.runnable->partition && ranked.plan.stages() > 1 &&
           target.runnable->partition(ranked.plan.stages());
}

PartitionTask Search::task_of(const RankedPlan& ranked) const {
    PartitionTask task{ranked.candidate, 0, ranked.plan, 0, {}, {}};
    if (!has_only_partition(ranked)) task.plan.partition = {};
    task.plan.offload = targets_[ranked.candidate].base.offload;
    task.plan.activation_loading_horizon = targets_[ranked.candidate].base.activation_loading_horizon;
    for (const Group& group : groups_)
        if (group.target == ranked.candidate &&
            families_[group.families.front()].first.layout == task.plan.layout)
            task.layout = group.layout;
    return task;
}

// Does the plan take as long as the limit with nothing beside it? `alone`: without its copies, once it is
// known; copies need not keep pace.
bool Search::is_slow_alone(std::size_t target, const schedule::Plan& plan, bool may_offload,
                           core::Seconds limit, std::optional<core::Seconds>& alone,
                           sim::LoweredPrograms& lowered) const {
    if (std::isinf(limit.value) || known_step(target, plan)) return false;
    if (!alone) alone = time_alone(target, plan, may_offload, &lowered).bound;
    const bool has_copies = plan.offload != targets_[target].base.offload;
    return *alone >= limit || (has_copies && time_alone(target, plan, false, &lowered).bound >= limit);
}

// In the memory of the device if it can be, else with the longest horizon of offload with which it fits, or a
// shorter one that is better than the best; where memory decides, with whatever needs least. `limit`: steps
// that are as long are of no use, or as much memory in bytes.
std::optional<RankedPlan> Search::simulate_partition(const PartitionTask& task, core::Seconds limit) const {
    if (task.plan.recomputes_by_stage()) return simulate_with_layers(task, limit);
    const Target& target = targets_[task.target];
    const std::vector<model::OperatorRange> ranges = ranges_of(graph_, task.plan.partition.first_units);
    const bool may_offload =
        request_.offload != schedule::Offload::none && task.plan.offload == schedule::Offload::none;
    std::optional<core::Seconds> alone;  // whatever the horizon
    // Nothing where it does not fit.
    const auto memory_within = [&](const schedule::Plan& plan) -> std::optional<MemoryBound> {
        work_.add(1, per_bounded_plan);
        work_.add(double(plan.stages()), per_bounded_stage);
        const std::lock_guard lock(bounds_[task.layout]->guard);
        std::optional<MemoryBound> memory = bounds_[task.layout]->bounds.memory_of(plan, ranges);
        const cluster::InstanceType& instance = target.cluster.instance;
        if (memory && (memory->peak > instance.device.memory || memory->exceeds_host(instance.host_memory)))
            memory.reset();
        return memory;
    };
    const auto time_of_copies = [&](const schedule::Plan& plan) {
        const std::lock_guard lock(bounds_[task.layout]->guard);
        return bounds_[task.layout]->bounds.time_of_copies(plan, ranges);
    };
    const auto try_plan = [&](const schedule::Plan& plan) -> std::optional<RankedPlan> {
        const std::optional<MemoryBound> memory = memory_within(plan);
        if (!memory ||
            (looks_at_every_horizon() ? memory->peak.value >= limit.value : time_of_copies(plan) >= limit))
            return std::nullopt;
        if (!is_run(target, plan)) return std::nullopt;
        sim::LoweredPrograms lowered;
        lowered.keeps_runs = false;
        if (!looks_at_every_horizon() && is_slow_alone(task.target, plan, may_offload, limit, alone, lowered))
            return std::nullopt;
        RankedPlan ranked;
        ranked.candidate = task.target;
        ranked.plan = plan;
        core::Diagnostics unpriced;
        if (simulate_plan(ranked, unpriced, &lowered)) return std::nullopt;
        return ranked;
    };
    std::optional<RankedPlan> ranked = try_plan(task.plan);
    if (may_offload && (!ranked || looks_at_every_horizon())) {
        const std::vector<int> horizons = loading_horizons(graph_, target.cluster.instance.device, task.plan);
        schedule::Plan away = task.plan;
        away.offload = request_.offload;
        // The shortest needs least.
        if (!horizons.empty()) away.activation_loading_horizon = horizons.front();
        if (!horizons.empty() && !memory_within(away)) return ranked;
        for (auto horizon = horizons.rbegin(); horizon != horizons.rend(); ++horizon) {
            away.activation_loading_horizon = *horizon;
            std::optional<RankedPlan> tried = try_plan(away);
            if (tried && (!ranked || is_better(*tried, *ranked))) ranked = std::move(tried);
            if (ranked && !looks_at_every_horizon())
                limit = std::min(limit, step_limit(task.target, std::min(ranked->value, best_value())));
            if (alone && *alone >= limit) break;
        }
    }
    return ranked;
}

// Instead of the same plan with another partition, or in its place among the best.
void Search::keep_plan(RankedPlan ranked) {
    const auto usual = [&](const RankedPlan& one) {
        schedule::Plan plan = task_of(one).plan;
        if (plan.recomputes_by_stage()) plan.recompute_layers_by_stage.assign(1, 1);  // they hang on the cuts
        return plan;
    };
    const auto is_same = [&](const RankedPlan& other) {
        return other.candidate == ranked.candidate && usual(other) == usual(ranked);
    };
    std::vector<RankedPlan>& plans = result_.plans;
    const auto same = std::find_if(plans.begin(), plans.end(), is_same);
    if (same != plans.end()) {
        if (is_better(ranked, *same)) *same = std::move(ranked);
    } else {
        plans.push_back(std::move(ranked));
    }
    std::stable_sort(plans.begin(), plans.end(), is_better);
    if (plans.size() > request_.keep) plans.resize(request_.keep);
}

PartitionMeans Search::partition_means() {
    PartitionMeans means;
    means.simulate = [this](const PartitionTask& task, core::Seconds limit) {
        return simulate_partition(task, limit);
    };
    means.note = [this](const RankedPlan& ranked) {
        note_step(ranked);
        Settling settling(ranked.evaluation);
        settling.is_late = false;  // other partitions of the order need not be
        for (const bool shares_links : {false, true}) note_order(ranked.plan, shares_links, settling);
    };
    means.limit = [this](std::size_t target, double value) { return step_limit(target, value); };
    means.least_open = least_bound();
    means.is_late = [this] { return is_late(lacks_plan() ? patience : share_of_partitions); };
    means.is_stopped = [this] { return is_stopped(); };
    means.tell_progress = [this] { tell_progress(told_least_); };
    means.work = &work_;
    means.layout = [this](std::size_t layout) {
        return PartitionMeans::Layout{&bounds_[layout]->guard, &bounds_[layout]->bounds};
    };
    means.threads = request_.threads;
    means.values_steps = request_.objective != Objective::memory;
    return means;
}

// `means`: those of the search.
void Search::search_partitions(PartitionSearch& search, PartitionMeans means) {
    PartitionTasks tasks = partition_tasks();
    result_.account.covers_partitions = !tasks.open.empty() || tasks.beaten > 0;
    search.exclude(tasks.beaten);
    if (lacks_plan()) {
        find_fitting(search, tasks);
    } else if (!result_.plans.empty()) {
        if (std::optional<RankedPlan> better = search.find_better(tasks.open, best_value()))
            keep_plan(std::move(*better));
    }
    move_cuts(search, result_.plans);
    if (!is_late()) try_chosen_partitions(search, result_.plans);
    if (!result_.plans.empty())
        if (std::optional<RankedPlan> better = search.find_rest(tasks.open, best_value())) {
            keep_plan(std::move(*better));
            move_cuts(search, result_.plans);
        }
    if (request_.refines_first) refine(search);
    const auto exploring = [&](core::Seconds least) {
        means.is_late = [this, end = end_of_exploring(least)] { return is_stopped() || work_.spent() > end; };
        return PartitionSearch(graph_, means);
    };
    if (explore_partitions(std::move(tasks), search, exploring) && request_.refines_first) refine(search);
}

// Where no plan fits with the partition that balances its stages, with another one of it some may.
void Search::find_fitting(PartitionSearch& search, const PartitionTasks& tasks) {
    std::vector<PartitionTask> numerous = tasks.cramped;
    for (const std::vector<PartitionTask>* const others : {&tasks.numerous, &tasks.explored})
        numerous.insert(numerous.end(), others->begin(), others->end());
    search.leave_undecided(tasks.hardly_fitting);
    std::optional<RankedPlan> fitting = search.find_better(tasks.open, best_value());
    if (!fitting) fitting = search.find_likely({std::move(numerous)}, best_value());
    if (!fitting) fitting = search.find_rest(tasks.open, best_value());
    if (fitting) keep_plan(std::move(*fitting));
}

// Those of the plans that are close to the best, where not every partition is looked at, also with the
// partition that they get from a simulation which is given none: it is chosen by moves under the compute
// order itself, and may lie far from what balances the work. Where it is better, its cuts are moved too.
void Search::try_chosen_partitions(PartitionSearch& search, const std::vector<RankedPlan>& plans) {
    std::vector<PartitionTask> tasks;
    std::vector<double> values;
    for (const RankedPlan& ranked : plans) {
        if (ranked.value > best_value() * most_behind_to_choose || ranked.plan.stages() == 1 ||
            has_only_partition(ranked) || covers_every_partition(ranked.plan, graph_.units.size()))
            continue;
        tasks.push_back(task_of(ranked));
        values.push_back(ranked.value);
    }
    std::vector<std::optional<RankedPlan>> chosen(tasks.size());
    work_on(tasks.size(), [&](std::size_t t) {
        PartitionTask task = tasks[t];
        work_.add(1, per_chosen_partition);
        std::optional<schedule::Partition> partition =
            sim::complete_partition(task.plan, graph_, targets_[task.target].cluster, request_.constants);
        if (!partition) return;
        task.plan.partition = std::move(*partition);
        chosen[t] = simulate_partition(task, step_limit(task.target, values[t]));
    });
    std::vector<RankedPlan> better;
    for (std::size_t t = 0; t < tasks.size(); ++t) {
        if (!chosen[t]) continue;
        search.count_simulated(1);
        if (chosen[t]->value < values[t]) better.push_back(std::move(*chosen[t]));
    }
    move_cuts(search, std::move(better));
}

core::Seconds Search::end_of_exploring(core::Seconds least) const {
    const core::Seconds usual =
        request_.time_limit ? *request_.time_limit * share_of_exploring : exploring_without_limit;
    const core::Seconds end = std::max(usual, work_.spent() + least);
    return request_.time_limit ? std::min(end, *request_.time_limit * share_of_partitions) : end;
}

// Of plans with several stages a rank some more partitions, while there is time, with what no plan of the
// space has but the first one was refined to. None of them stays open: that they are not all looked at is
// what the account says of them. Was one found that is better?
bool Search::explore_partitions(PartitionTasks tasks, PartitionSearch& search,
                                const std::function<PartitionSearch(core::Seconds)>& exploring_for) {
    if (result_.plans.empty()) return false;
    for (std::vector<PartitionTask>* const of_kind : {&tasks.numerous, &tasks.explored, &tasks.cramped})
        for (PartitionTask& task : *of_kind)
            if (takes_buckets(task.plan))
                task.plan.gradient_bucket = result_.plans.front().plan.gradient_bucket;
    std::optional<RankedPlan> best;
    const auto value = [&] { return best ? best->value : best_value(); };
    const auto keep = [&](std::optional<RankedPlan> better) {
        if (better) best = std::move(better);
    };
    const auto take_promising = [best = best_value()](std::vector<PartitionTask>& all) {
        const auto others = std::stable_partition(
            all.begin(), all.end(), [&](const PartitionTask& task) { return task.likely < best; });
        std::vector<PartitionTask> taken(std::make_move_iterator(all.begin()),
                                         std::make_move_iterator(others));
        all.erase(all.begin(), others);
        return taken;
    };
    PartitionSearch promising = exploring_for(least_of_promising);
    keep(promising.find_likely({take_promising(tasks.numerous), take_promising(tasks.cramped)}, value()));
    PartitionSearch exploring = exploring_for(least_exploring);
    keep(exploring.find_likely({std::move(tasks.numerous), std::move(tasks.cramped)}, value()));
    keep(exploring.find_better(tasks.explored, value()));
    keep(exploring.find_rest(tasks.explored, value()));
    search.count_simulated(promising.account().simulated + exploring.account().simulated);
    if (!best) return false;
    keep_plan(std::move(*best));
    move_cuts(search, {result_.plans.front()});
    return true;
}

// Moved cuts may bring one of the others before the first.
void Search::move_cuts(PartitionSearch& search, std::vector<RankedPlan> moved) {
    std::erase_if(moved, [&](const RankedPlan& ranked) { return has_only_partition(ranked); });
    std::vector<PartitionTask> tasks;
    for (const RankedPlan& ranked : moved) tasks.push_back(task_of(ranked));
    const std::vector<char> is_done = search.improve(moved, tasks, [&] { return !is_late(share_of_moves); });
    for (const RankedPlan& ranked : moved) keep_plan(ranked);
    // One that came before the first while its cuts still moved is not settled either.
    for (std::size_t p = 0; p < moved.size(); ++p)
        is_settled_ = is_settled_ && (is_done[p] != 0 || moved[p].value > result_.plans.front().value);
    // And not all of its moves were tried.
    const auto is_ahead = [&](const RankedPlan& ranked) {
        const RankedPlan& first = result_.plans.front();
        return ranked.candidate == first.candidate && ranked.plan == first.plan;
    };
    if (moved.size() < 2 || std::none_of(moved.begin() + 1, moved.end(), is_ahead)) return;
    if (is_late()) is_settled_ = false;
    else move_cuts(search, {result_.plans.front()});
}

}  // namespace planner
