#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "core/diagnostics.h"
#include "planner/search/search_state.h"
#include "schedule/plan/partition.h"

namespace planner {

bool has_unit_without_parameters(const model::ModelGraph& graph) {
    return std::any_of(graph.units.begin(), graph.units.end(), [&](const model::Unit& unit) {
        return model::parameter_count(graph, unit.operators) == 0;
    });
}

namespace {

// Share by which steps that follow from shorter ones may differ.
constexpr double rounding_of_steps = 1e-6;
// Families opened at once.
constexpr std::size_t opened_at_once = 16;

// Where to begin with short steps of an order, when plans settled at these numbers of micro-batches, so many
// each: what does not settle there is tried again with more.
int cheapest_begin(const std::map<int, int>& settled) {
    int best = 0;
    double least = std::numeric_limits<double>::infinity();
    for (const auto& [begin, plans] : settled) {
        double cost = 0;
        for (const auto& [at, count] : settled) cost += double(count) * (at > begin ? begin + at : begin);
        if (cost < least) best = begin;
        least = std::min(least, cost);
    }
    return best;
}

}  // namespace

// What bounds know of it: state there, and activations where all of them leave first.
bool Search::exceeds_hosts(const Entry& entry) const {
    return entry.memory.exceeds_host(targets_[entry.target].cluster.instance.host_memory);
}

void Search::bound(Entry& entry, GuardedBounds& guarded) const {
    Bounds& bounds = guarded.bounds;
    const cluster::DeviceSpec& device = targets_[entry.target].cluster.instance.device;
    entry.is_bounded = true;
    work_.add(1, per_bounded_plan);
    if (bounds.state_never_fits(entry.plan)) {
        // Not yet known of which rank; whoever asks for the nearest plan looks again.
        entry.rejection = Rejection::state;
        return;
    }
    work_.add(entry.plan.stages(), per_bounded_stage);
    const std::optional<MemoryBound> memory = bounds.memory(entry.plan);
    if (!memory) {
        entry.rejection = Rejection::stages;
        return;
    }
    entry.memory = *memory;
    if (memory->state + device.context_memory > device.memory) entry.rejection = Rejection::state;
    else if (exceeds_hosts(entry)) entry.rejection = Rejection::host_memory;
    else if (memory->peak > device.memory) entry.rejection = Rejection::activations;
    if (entry.rejection && entry.is_beside_space()) entry.fewest_layers = fewest_layers(entry);
    const bool may_be_helped = entry.rejection == Rejection::activations && entry.stands_for > 1;
    if (entry.rejection && !may_be_helped) return;
    {
        const std::lock_guard lock(guarded.guard);
        entry.time_bound = std::max(entry.time_bound, bounds.time(entry.plan));
    }
    entry.bound = value_of(entry.target, entry.time_bound, memory->peak);
    if (!entry.rejection) entry.rejection = constraint_violated(entry.target, entry.time_bound);
}

void Search::bound_families() {
    std::vector<std::size_t> all(groups_.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    bound_families_of(all);
}

// Of any plan on the cluster: takes no time, where the search was stopped.
void Search::bound_coarsely(Family& family) {
    const std::size_t target = groups_[family.group].target;
    least_steps_.resize(targets_.size());
    if (!least_steps_[target]) least_steps_[target] = least_step(target, targets_[target].cluster);
    family.time_bound = *least_steps_[target];
    family.bound = value_of(target, family.time_bound, core::Bytes(0));
}

// Those that are not bounded. One task a layout: what its plans share is computed once and by one thread.
void Search::bound_families_of(const std::vector<std::size_t>& groups) {
    std::map<std::size_t, std::vector<std::size_t>> by_layout;
    std::vector<std::size_t> unbounded;
    for (const std::size_t g : groups)
        for (const std::size_t f : groups_[g].families)
            if (!std::exchange(families_[f].is_bounded, true)) {
                by_layout[groups_[g].layout].push_back(f);
                unbounded.push_back(f);
            }
    const std::vector<std::pair<std::size_t, std::vector<std::size_t>>> tasks(by_layout.begin(),
                                                                              by_layout.end());
    const std::vector<char> is_bounded = work_on(tasks.size(), [&](std::size_t t) {
        const auto& [layout, families] = tasks[t];
        for (const std::size_t f : families) {
            Family& family = families_[f];
            if (request_.uses_bounds) {
                work_.add(1, per_family);
                family.time_bound = bounds_[layout]->bounds.time_of_work(family.first);
            }
            family.bound = value_of(groups_[family.group].target, family.time_bound, core::Bytes(0));
        }
    });
    for (std::size_t t = 0; t < tasks.size(); ++t)
        if (!is_bounded[t])
            for (const std::size_t f : tasks[t].second) bound_coarsely(families_[f]);
    for (const std::size_t f : unbounded) {
        const Family& family = families_[f];
        const std::size_t target = groups_[family.group].target;
        const std::optional<Rejection> rejection =
            request_.uses_bounds ? constraint_violated(target, family.time_bound) : std::nullopt;
        if (rejection) {
            families_[f].is_open = false;
            result_.account.rejected[*rejection] += family.stands_for;
            continue;
        }
        unopened_.emplace(family.bound, family.time_bound.value, f);
    }
}

// Those before which nothing better is known of.
std::vector<std::size_t> Search::next_families() const {
    std::vector<std::size_t> next;
    for (auto key = unopened_.begin(); key != unopened_.end() && next.size() < opened_at_once; ++key) {
        if (!queue_.empty() && std::get<0>(*key) > std::get<0>(*queue_.begin())) break;
        next.push_back(std::get<2>(*key));
    }
    return next;
}

// Every member gets a bound of any partition of it, or a rejection; where memory decides, all bounds.
void Search::open_families(const std::vector<std::size_t>& opened) {
    // By layout: what its plans share is computed by one thread.
    std::map<std::size_t, std::vector<std::size_t>> by_layout;
    for (const std::size_t f : opened) {
        make_members(families_[f].group);
        const Family& family = families_[f];
        unopened_.erase({family.bound, family.time_bound.value, f});
        families_[f].is_open = false;
        std::vector<std::size_t>& members = by_layout[groups_[family.group].layout];
        members.insert(members.end(), family.members.begin(), family.members.end());
    }
    const std::vector<std::pair<std::size_t, std::vector<std::size_t>>> tasks(by_layout.begin(),
                                                                              by_layout.end());
    const bool bounds_time_first = request_.uses_bounds && request_.objective != Objective::memory;
    work_on(tasks.size(), [&](std::size_t t) {
        GuardedBounds& guarded = *bounds_[tasks[t].first];
        for (const std::size_t i : tasks[t].second) {
            Entry& entry = entries_[i];
            if (!bounds_time_first) {
                bound(entry, guarded);
                continue;
            }
            work_.add(1, per_opened_plan);
            entry.time_bound = std::max(entry.time_bound, guarded.bounds.time_of_any_partition(entry.plan));
            entry.bound = value_of(entry.target, entry.time_bound, core::Bytes(0));
            entry.rejection = constraint_violated(entry.target, entry.time_bound);
        }
    });
    for (const auto& [layout, members] : tasks)
        for (const std::size_t i : members) {
            if (!bounds_time_first) offload_where_needed(i);
            enter(i);
        }
}

// Where activations are too much, or every horizon counts, the plan with offload becomes an entry of its own.
void Search::offload_where_needed(std::size_t i) {
    if (!request_.uses_bounds || entries_[i].stands_for <= 1 ||
        !(entries_[i].rejection == Rejection::activations ||
          (looks_at_every_horizon() && !entries_[i].rejection)))
        return;
    Entry away = offloaded(entries_[i]);
    entries_[i].stands_for = 1;
    add(std::move(away));
}

// The plan with its activations offloaded, under a horizon that is still to be chosen. Copies only add to the
// time without them.
Entry Search::offloaded(const Entry& entry) const {
    Entry away = entry;
    away.plan.offload = request_.offload;
    away.is_open = true;
    away.is_tight = false;
    away.end = away.stands_for = entry.stands_for - 1;
    away.memory.peak = away.memory.state;
    away.bound = value_of(away.target, away.time_bound, away.memory.peak);
    away.rejection = constraint_violated(away.target, away.time_bound);
    return away;
}

void Search::choose_horizon(Entry& entry) {
    const std::vector<int> horizons = horizons_of(entry);
    const core::Bytes available = targets_[entry.target].cluster.instance.device.memory;
    Bounds& bounds = bounds_[entry.layout]->bounds;
    const auto fits = [&](std::size_t index) {
        entry.plan.activation_loading_horizon = horizons[index];
        const std::optional<MemoryBound> memory = bounds.memory(entry.plan);
        core::require(memory.has_value(), "offload does not change the stages of a plan");
        entry.memory = *memory;
        return memory->peak <= available && bounds.offloads_anything(entry.plan);
    };
    entry.is_open = false;
    if (!fits(entry.first)) {
        entry.rejection = Rejection::activations;
        return;
    }
    // The longer the horizon, the more memory is needed.
    if (entry.is_shortest) return;
    std::size_t chosen = entry.first, beyond = looks_at_every_horizon() ? entry.first + 1 : entry.end;
    while (beyond - chosen > 1) {
        const std::size_t middle = (chosen + beyond) / 2;
        (fits(middle) ? chosen : beyond) = middle;
    }
    if (!looks_at_every_horizon()) {
        entry.skipped = entry.end - chosen - 1;
        entry.end = chosen + 1;
        entry.stands_for -= entry.skipped;
    }
    fits(chosen);
    // The shorter the horizon, the more of them leave.
    if (!looks_at_every_horizon() && exceeds_hosts(entry)) entry.rejection = Rejection::host_memory;
}

// Where the last one like it did not fit with any horizon, the shortest is asked first: one simulation then
// tells of all of them.
void Search::ask_shortest_first(Entry& entry) {
    if (entry.plan.offload == schedule::Offload::none || entry.is_shortest || entry.is_shorter ||
        entry.knows_shortest || entry.stands_for <= 1 || looks_at_every_horizon() ||
        !never_fit_.contains({entry.layout, entry.plan.micro_batch, entry.plan.recompute}))
        return;
    entry.is_shortest = true;
    choose_horizon(entry);
}

void Search::tighten(Entry& entry) {
    GuardedBounds& guarded = *bounds_[entry.layout];
    if (!entry.is_bounded) return bound(entry, guarded);
    if (entry.is_open) choose_horizon(entry);
    if (entry.rejection) return;
    if (entry.is_shortest) {
        entry.is_tight = true;
        return;
    }
    work_.add(1, per_tightened_plan);
    const double passes = 2.0 * entry.plan.stages() * entry.plan.micro_batches;
    work_.add(passes <= most_replayed_passes ? passes : 0, per_replayed_pass);
    Bounds::OrderTiming timing;
    {
        const std::lock_guard lock(guarded.guard);
        timing = guarded.bounds.order_timing(entry.plan);
    }
    entry.time_bound = std::max(entry.time_bound, timing.time());
    entry.bound = std::max(entry.bound, value_of(entry.target, entry.time_bound, entry.memory.peak));
    entry.is_tight = true;
}

// Entries without bounds of their own get them, the others those of their compute order.
void Search::tighten_all(const std::vector<std::size_t>& loose) {
    for (const std::size_t i : loose) leave_queue(i);
    std::vector<bool> was_bounded;
    for (const std::size_t i : loose) was_bounded.push_back(entries_[i].is_bounded);
    // Those of one compute order, which differ in their sharding, share what takes long: a second thread
    // would wait for it. And those of one layout some more, so layouts take turns.
    std::map<std::pair<std::size_t, schedule::Plan::OrderKey>, std::vector<std::size_t>> alike;
    for (const std::size_t i : loose) alike[{entries_[i].group, entries_[i].plan.order_key()}].push_back(i);
    std::map<std::size_t, std::size_t> turns;  // of each layout
    std::multimap<std::size_t, const std::vector<std::size_t>*> by_turn;
    for (const auto& [key, entries] : alike) by_turn.emplace(turns[groups_[key.first].layout]++, &entries);
    std::vector<const std::vector<std::size_t>*> tasks;
    for (const auto& [turn, entries] : by_turn) tasks.push_back(entries);
    work_on(tasks.size(), [&](std::size_t t) {
        for (const std::size_t i : *tasks[t]) tighten(entries_[i]);
    });
    for (std::size_t l = 0; l < loose.size(); ++l) {
        const std::size_t i = loose[l];
        if (!was_bounded[l]) {
            recompute_where_needed(i);
            offload_where_needed(i);
        }
        if (const std::size_t skipped = std::exchange(entries_[i].skipped, 0); skipped > 0)
            result_.account.rejected[Rejection::activations] += skipped;
        enter(i);
    }
}

// The longest path through its instructions, each of which takes as long as it takes alone: what shares links
// or cores takes longer. Copies of offloaded activations add to it, whatever their horizon; but they cut
// passes, at which hosts may catch up early, so hosts do not count where there may be copies, and at units:
// one without parameters may then no longer wait for what one after it needs. Nothing where measured prices
// bound no time, and where there is nothing to run beside.
Search::TimedAlone Search::time_alone(std::size_t target, schedule::Plan plan, bool may_offload,
                                      sim::LoweredPrograms* lowered) const {
    const schedule::Plan& base = targets_[target].base;
    const cluster::Cluster& cluster = targets_[target].cluster;
    if (!has_priced_times(cluster) || plan.layout.ranks() == 1 ||
        (may_offload && has_bare_unit_ && plan.shards(schedule::Sharding::gradients)))
        return {};
    sim::EvaluateOptions options = quickest_options(target, plan, false);
    options.step_only = true;
    options.known_candidates = &known_candidates_[target];
    options.counts_hosts = !may_offload;
    if (!may_offload || plan.offload == base.offload) options.lowered = lowered;
    if (may_offload) {
        plan.offload = base.offload;
        plan.activation_loading_horizon = base.activation_loading_horizon;
    }
    core::Diagnostics unpriced;
    const std::optional<sim::Evaluation> evaluation =
        sim::evaluate(stages_[target]->planned(plan), cluster, plan, unpriced, options);
    work_.add(1, per_simulation_alone);
    work_.add(plan.layout.ranks(), per_timed_rank);
    if (!evaluation) return {};
    work_.add(double(evaluation->simulated_instructions), per_instruction_alone);
    return {evaluation->step_time * (1 - rounding_of_steps), Settling(*evaluation)};
}

sim::EvaluateOptions Search::quickest_options(std::size_t target, const schedule::Plan& plan,
                                              bool shares_links) const {
    sim::EvaluateOptions options = quick_options(plan, request_.constants);
    options.repetition = &stages_[target]->repetition();
    options.known_graphs = &stages_[target]->known_graphs();
    options.blocks = &blocks_;
    options.shares_links = shares_links;
    const OrderOfStep order(plan.order_key(), plan.micro_batches);
    if (late_orders_.contains(order)) options.most_micro_batches.reset();
    const auto settled = settled_at_.find({order, shares_links});
    if (settled != settled_at_.end()) options.least_micro_batches = cheapest_begin(settled->second);
    return options;
}

void Search::note_order(const schedule::Plan& plan, bool shares_links, const Settling& settling) {
    const OrderOfStep order(plan.order_key(), plan.micro_batches);
    if (settling.is_late) late_orders_.insert(order);
    if (settling.at == 0) return;
    ++settled_at_[{order, shares_links}][settling.at];
}

schedule::Plan Search::partitioned(const Entry& entry) const {
    schedule::Plan plan = entry.plan;
    if (const schedule::Partition* partition = stages_[entry.target]->partition(plan))
        plan.partition = *partition;
    return plan;
}

void Search::time_all(const std::vector<std::size_t>& untimed) {
    for (const std::size_t i : untimed) leave_queue(i);
    std::vector<Settling> settling(untimed.size());
    work_on(untimed.size(), [&](std::size_t u) {
        Entry& entry = entries_[untimed[u]];
        schedule::Plan plan = partitioned(entry);
        entry.is_timed = true;
        if (!is_run(targets_[entry.target], plan)) return;
        const bool may_offload = entry.stands_for > 1 || plan.offload != targets_[entry.target].base.offload;
        const TimedAlone timed = time_alone(entry.target, std::move(plan), may_offload);
        settling[u] = timed.settling;
        entry.time_bound = std::max(entry.time_bound, timed.bound);
        entry.bound = std::max(entry.bound, value_of(entry.target, entry.time_bound, entry.memory.peak));
        entry.rejection = constraint_violated(entry.target, entry.time_bound);
    });
    for (std::size_t u = 0; u < untimed.size(); ++u) {
        note_order(entries_[untimed[u]].plan, false, settling[u]);
        enter(untimed[u]);
    }
}

}  // namespace planner
