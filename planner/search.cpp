#include "planner/search.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <ctime>
#include <deque>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/parallel.h"
#include "planner/bounds.h"
#include "planner/explain.h"
#include "planner/order/plan_order.h"
#include "planner/pareto.h"
#include "planner/partition_search.h"
#include "schedule/plan/partition.h"

namespace planner {

namespace {

using Clock = std::chrono::steady_clock;

// A late search takes plans first whose memory bound, times this, is within the device: a fifth of the memory
// is then free for what a simulation finds beyond the bound.
constexpr double roomy = 1.25;
// Plans simulated before their results are looked at, and plans whose bounds are tightened at once. Both are
// fixed: what a wave may skip depends on the waves before it only, so the answer does not depend on the
// threads.
constexpr std::size_t wave = 4, tightened_at_once = 128;
// Tight entries are passed over for loose ones behind them, so far.
constexpr std::size_t looked_at_in_a_wave = 4 * tightened_at_once;
// Families opened at once.
constexpr std::size_t opened_at_once = 16;
// Groups of plans with which a search begins, and what is looked at in each: first those of the least bounds.
constexpr std::size_t most_usual_groups = 6, tightened_in_a_probe = 24, simulated_in_a_probe = 2;
constexpr int tries_of_a_probe = 3;
// Some milliseconds of enumeration.
constexpr std::size_t enumerated_between_progress = 4096;
// Of the limit, for the first plans, and for these and all plans with the one partition that balances them.
// Then partitions, and moves of cuts of the plans behind the first.
constexpr double share_of_probes = 0.4, share_of_waves = 0.75, share_of_moves = 0.9;
// Share by which the sums of one step may differ.
constexpr double rounding = 1e-9;
// Fitting plans are looked for among so many of least memory; the others need more.
constexpr std::size_t most_fitting_tries = 8;

// Micro-batches that a candidate is simulated with, at most: eight rounds over the pipeline. Longer steps are
// extrapolated where that is exact (sim::EvaluateOptions), shorter ones simulated whole.
int simulated_micro_batches(const schedule::Plan& plan) {
    constexpr int least = 8, rounds = 8;
    return std::max(least, rounds * plan.layout.pipeline);
}

bool is_better(const RankedPlan& a, const RankedPlan& b) {
    return std::pair(a.value, a.evaluation.step_time) < std::pair(b.value, b.evaluation.step_time);
}

bool is_run(const Target& target, const schedule::Plan& plan) {
    return !target.runnable || !target.runnable->takes || target.runnable->takes(plan);
}

sim::EvaluateOptions quick_options(const schedule::Plan& plan, const sim::CostConstants& constants) {
    sim::EvaluateOptions options;
    options.constants = constants;
    options.most_micro_batches = simulated_micro_batches(plan);
    options.verifies = false;
    return options;
}

struct Entry {
    std::size_t target = 0;
    schedule::Plan plan;
    bool is_bounded = false;  // else the bound is of any partition, or its family's, and no memory is known
    bool is_taken = false;    // simulated, or replaced
    double bound = 0;         // of the objective
    core::Seconds time_bound;
    MemoryBound memory;
    std::optional<Rejection> rejection;  // nothing: still a candidate
    std::size_t layout = 0;              // index into Search::bounds_
    bool is_tight = false;               // the bound is of its very compute order
    // Offload: of the target's loading horizons those from `first` to before `end` are in question, and while
    // none is chosen the bounds are those of any.
    bool is_open = false;
    std::size_t first = 0, end = 0;
    std::size_t stands_for =
        1;  // plans of the space: this one, and those that are looked at only if it is rejected
    std::size_t skipped = 0;  // of the last choice of a horizon: plans that cannot fit
};

// Plans of one target, layout, micro-batch and recomputation. They share the work of a step but for what
// depends on how sequences pass and the handling of gradients: those that share that too are a family,
// with one bound, and are looked at only where that bound does not exclude them.
struct Family {
    std::size_t group = 0;  // index into Search::groups_
    std::vector<std::size_t> members;
    double bound = 0;  // of the objective
    core::Seconds time_bound;
    bool is_bounded = false;
    bool is_open = true;  // not yet looked into
};
struct Group {
    std::size_t target = 0, layout = 0;
    std::vector<std::size_t> families;
    bool is_probed = false;
};

class Search {
public:
    Search(const model::ModelGraph& graph, const std::vector<Target>& targets, const SearchRequest& request)
        : graph_(graph), targets_(targets), request_(request) {
        for (const Target& target : targets) {
            stages_.push_back(
                std::make_unique<StageCollection>(graph, target.cluster.instance.device, request.constants));
            known_candidates_.emplace_back();
        }
    }

    SearchResult run(core::Diagnostics& diagnostics);

private:
    // Of the whole training, whose tokens are given.
    double steps() const {
        double tokens_per_step = static_cast<double>(request_.global_batch) *
                                 static_cast<double>(std::max<std::int64_t>(1, graph_.tokens_per_sample));
        return std::ceil(*request_.tokens / tokens_per_step);
    }
    double value_of(std::size_t target, core::Seconds step, core::Bytes peak) const {
        switch (request_.objective) {
            case Objective::memory: return peak.value;
            case Objective::cost: return (cluster::price(targets_[target].cluster) * step).value;
            case Objective::speed:
            case Objective::time_to_train: return step.value;
        }
        throw core::InternalError("broken promise: every objective has a value");
    }
    std::optional<Rejection> constraint_violated(std::size_t target, core::Seconds step) const {
        return constraint_violated(targets_[target].cluster, step);
    }
    std::optional<Rejection> constraint_violated(const cluster::Cluster& cluster, core::Seconds step) const {
        if (!request_.tokens) return std::nullopt;
        core::Seconds total = step * steps();
        if (request_.deadline && total > *request_.deadline) return Rejection::deadline;
        if (request_.budget && cluster::price(cluster) * total > *request_.budget) return Rejection::budget;
        return std::nullopt;
    }
    // Of one plan's horizons the longest that fits is the fastest; what needs least memory is known of each
    // apart.
    bool looks_at_every_horizon() const { return request_.objective == Objective::memory; }
    std::vector<int> horizons_of(const Entry& entry) const {
        if (request_.offload == schedule::Offload::none ||
            targets_[entry.target].base.offload != schedule::Offload::none)
            return {};
        return loading_horizons(graph_, targets_[entry.target].cluster.instance.device, entry.plan);
    }
    core::Seconds elapsed() const {
        return core::Seconds(std::chrono::duration<double>(Clock::now() - begin_).count());
    }

    bool is_late() const { return is_late(1); }
    // Has this share of the limit been worked?
    bool is_late(double share) const {
        return is_stopped() || (request_.time_limit && work_.spent() > *request_.time_limit * share);
    }
    bool is_stopped() const { return request_.is_stopped && request_.is_stopped(); }
    // `least` is the bound of what is left, where it is known.
    void tell_progress(std::optional<double> least);
    // work(item) for every item of 0 ... count - 1, by all threads, telling on the way that the search lives.
    // False for an item: the search was stopped before it.
    std::vector<char> work_on(std::size_t count, const std::function<void(std::size_t item)>& work);
    void count_work(const schedule::Plan& plan, const std::optional<sim::Evaluation>& evaluation) const {
        work_.add(1, per_simulation);
        work_.add(plan.layout.ranks(), per_simulated_rank);
        if (evaluation) work_.add(double(evaluation->simulated_instructions), per_instruction);
        else work_.add(2.0 * plan.stages() * plan.micro_batches, per_instruction);
    }

    // Best first: by bound, then time bound, then index of the entry.
    using Key = std::tuple<double, double, std::size_t>;
    Key key_of(std::size_t i) const { return Key(entries_[i].bound, entries_[i].time_bound.value, i); }
    // No better than the last of the plans that the search is to rank, at first one.
    bool is_beaten(double bound) const {
        return request_.uses_bounds && result_.plans.size() >= wanted_ &&
               bound >= result_.plans[wanted_ - 1].value;
    }
    // Entries to look at next.
    struct Wave {
        std::vector<std::size_t> taken;  // to simulate, if their bounds are tight
        std::vector<std::size_t> loose;  // whose bounds can be tightened
        bool is_tight = true;
    };

    // The passes of a search, in their order.
    void enumerate();
    void bound_families();
    void bound_families_of(const std::vector<std::size_t>& groups);
    void bound_coarsely(Family& family);
    void enter(std::size_t i);
    void probe_usual_plans(core::Diagnostics& diagnostics);
    void search_waves(core::Diagnostics& diagnostics, double share);
    void close_queue();
    void search_partitions();
    void simulate_whole();
    void search_orders(core::Diagnostics& diagnostics);
    void explain_plans();
    void judge_bounds(double registered);

    // Parts of bound_families and search_waves.
    void bound(Entry& entry, Bounds& bounds) const;
    std::optional<double> least_bound() const;
    std::vector<std::size_t> next_families() const;
    void open_families(const std::vector<std::size_t>& opened);
    void offload_where_needed(std::size_t i);
    Wave next_wave() const;
    Wave late_wave() const;
    void tighten_all(const std::vector<std::size_t>& loose);
    void simulate(const std::vector<std::size_t>& taken, core::Diagnostics& diagnostics);

    // Parts of probe_usual_plans.
    double best_value() const;
    std::vector<std::size_t> usual_groups();
    std::vector<std::size_t> neighbours_of(std::size_t group);
    double least_bound_of(const Group& group) const;
    void probe(std::size_t group, core::Diagnostics& diagnostics);

    void look_for_shortfall();
    void keep_shortfall(Shortfall shortfall);
    Entry offloaded(const Entry& entry) const;
    std::optional<Entry> after_taking(Entry& entry, std::optional<Rejection> rejection) const;
    void choose_horizon(Entry& entry);
    void tighten(Entry& entry);
    void evaluate(std::size_t index, RankedPlan& ranked, std::optional<Rejection>& rejection,
                  core::Diagnostics& diagnostics) const;
    std::optional<RankedPlan> simulate_partition(const PartitionTask& task, core::Seconds limit) const;
    core::Seconds step_limit(std::size_t target, double value) const;
    struct PartitionTasks {
        std::vector<PartitionTask> open;
        std::size_t beaten = 0;  // by the first plan, whatever their partition
    };
    PartitionTasks partition_tasks() const;
    bool has_only_partition(const RankedPlan& ranked) const;
    PartitionTask task_of(const RankedPlan& ranked) const;
    void keep_plan(RankedPlan ranked);
    void settle(RankedPlan& ranked, sim::Evaluation evaluation) const;
    void search_order(RankedPlan& ranked, core::Diagnostics& diagnostics) const;

    const model::ModelGraph& graph_;
    const std::vector<Target>& targets_;
    const SearchRequest& request_;
    struct GuardedBounds {
        GuardedBounds(const cluster::Cluster& cluster, OrderCollection& orders, StageCollection& stages,
                      sim::KnownCandidates& known)
            : bounds(cluster, orders, stages, &known) {}
        std::mutex guard;
        Bounds bounds;
    };
    std::deque<Entry> entries_;  // hundreds of megabytes, which no growth copies
    std::vector<Family> families_;
    std::vector<Group> groups_;
    std::set<std::tuple<double, double, std::size_t>> unopened_;  // families, keyed as the queue is
    std::set<Key> queue_;
    std::size_t wanted_ = 1;
    SearchResult result_;
    // The least value that something not looked at may have.
    std::optional<double> open_;
    void leave_open(double value) { open_ = open_ ? std::min(*open_, value) : value; }
    core::Seconds least_step(const cluster::Cluster& cluster) const;
    std::vector<std::optional<core::Seconds>> least_steps_;  // of the targets
    bool is_settled_ = true;                                 // no move of a cut makes a ranked plan better
    std::optional<double> first_unvisited_;               // bound of the best entry that the time limit left
    std::vector<std::unique_ptr<GuardedBounds>> bounds_;  // one a layout
    mutable WorkMeter work_;
    OrderCollection orders_{&work_};
    std::vector<std::unique_ptr<StageCollection>> stages_;  // one a target
    std::deque<sim::KnownCandidates> known_candidates_;     // one a target
    std::optional<double> told_least_;
    Clock::time_point begin_ = Clock::now();
    std::clock_t cpu_begin_ = std::clock();
};

void Search::bound(Entry& entry, Bounds& bounds) const {
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
    else if (memory->peak > device.memory) entry.rejection = Rejection::activations;
    if (entry.rejection == Rejection::state || (entry.rejection && entry.stands_for == 1)) return;
    entry.time_bound = std::max(entry.time_bound, bounds.time(entry.plan));
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
    if (!least_steps_[target]) least_steps_[target] = least_step(targets_[target].cluster);
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
            const Entry& first = entries_[family.members.front()];
            if (request_.uses_bounds) {
                work_.add(1, per_family);
                family.time_bound = bounds_[layout]->bounds.time_of_work(first.plan);
            }
            family.bound = value_of(first.target, family.time_bound, core::Bytes(0));
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
        for (const std::size_t i : family.members) {
            entries_[i].time_bound = family.time_bound;
            if (rejection) result_.account.rejected[*rejection] += entries_[i].stands_for;
        }
        if (rejection) families_[f].is_open = false;
        else unopened_.emplace(family.bound, family.time_bound.value, f);
    }
}

// Every member gets a bound of any partition of it, or a rejection; where memory decides, all bounds.
void Search::open_families(const std::vector<std::size_t>& opened) {
    // By layout: what its plans share is computed by one thread.
    std::map<std::size_t, std::vector<std::size_t>> by_layout;
    for (const std::size_t f : opened) {
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
        Bounds& bounds = bounds_[tasks[t].first]->bounds;
        for (const std::size_t i : tasks[t].second) {
            Entry& entry = entries_[i];
            if (!bounds_time_first) {
                bound(entry, bounds);
                continue;
            }
            work_.add(1, per_opened_plan);
            entry.time_bound = std::max(entry.time_bound, bounds.time_of_any_partition(entry.plan));
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
    if (!request_.uses_bounds || entries_[i].stands_for == 1 ||
        !(entries_[i].rejection == Rejection::activations ||
          (looks_at_every_horizon() && !entries_[i].rejection)))
        return;
    Entry away = offloaded(entries_[i]);
    entries_[i].stands_for = 1;
    entries_.push_back(std::move(away));
    enter(entries_.size() - 1);
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
}

void Search::tighten(Entry& entry) {
    {
        const std::lock_guard lock(bounds_[entry.layout]->guard);
        if (!entry.is_bounded) return bound(entry, bounds_[entry.layout]->bounds);
        if (entry.is_open) choose_horizon(entry);
        if (entry.rejection) return;
        work_.add(1, per_tightened_plan);
        const double passes = 2.0 * entry.plan.stages() * entry.plan.micro_batches;
        work_.add(passes <= most_replayed_passes ? passes : 0, per_replayed_pass);
        entry.time_bound =
            std::max(entry.time_bound, bounds_[entry.layout]->bounds.time_of_order(entry.plan));
    }
    entry.bound = std::max(entry.bound, value_of(entry.target, entry.time_bound, entry.memory.peak));
    entry.is_tight = true;
}

// What comes into question once an entry has been simulated: where memory was exceeded, offload, or a shorter
// horizon than the one that was tried.
std::optional<Entry> Search::after_taking(Entry& entry, std::optional<Rejection> rejection) const {
    const bool is_first = entry.plan.offload == schedule::Offload::none;
    if (!request_.uses_bounds || entry.stands_for == 1 ||
        (!looks_at_every_horizon() && rejection != Rejection::simulated_peak))
        return std::nullopt;
    Entry next = is_first ? offloaded(entry) : entry;
    if (!is_first) {
        next.is_open = true;
        next.is_tight = false;
        next.stands_for = entry.stands_for - 1;
        if (looks_at_every_horizon()) ++next.first;
        else --next.end;
    }
    next.skipped = 0;
    entry.stands_for = 1;
    return next;
}

// A few micro-batches, and a straight line where the schedule has settled. The ranked few are verified and
// simulated in full afterwards.
void Search::evaluate(std::size_t index, RankedPlan& ranked, std::optional<Rejection>& rejection,
                      core::Diagnostics& diagnostics) const {
    const Entry& entry = entries_[index];
    const Target& target = targets_[entry.target];
    ranked.candidate = entry.target;
    ranked.plan = entry.plan;
    if (const schedule::Partition* partition = stages_[entry.target]->partition(entry.plan))
        ranked.plan.partition = *partition;
    if (!is_run(target, ranked.plan)) {
        rejection = Rejection::not_run;
        return;
    }
    std::optional<sim::Evaluation> evaluation = sim::evaluate(
        graph_, target.cluster, ranked.plan, diagnostics, quick_options(entry.plan, request_.constants));
    count_work(entry.plan, evaluation);
    if (!evaluation) {
        rejection = Rejection::no_figure;
        return;
    }
    settle(ranked, std::move(*evaluation));
    if (!ranked.evaluation.fits) {
        rejection = ranked.evaluation.peak_memory > ranked.evaluation.available_memory
                        ? Rejection::simulated_peak
                        : Rejection::host_memory;
        return;
    }
    rejection = constraint_violated(entry.target, ranked.evaluation.step_time);
}

// A simulation, and what follows from it.
void Search::settle(RankedPlan& ranked, sim::Evaluation evaluation) const {
    ranked.evaluation = std::move(evaluation);
    ranked.value = value_of(ranked.candidate, ranked.evaluation.step_time, ranked.evaluation.peak_memory);
    if (!request_.tokens) return;
    ranked.training_time = ranked.evaluation.step_time * steps();
    ranked.training_cost = ranked.evaluation.rate * *ranked.training_time;
}

// The plan with an order of its own, where that is better by the objective.
void Search::search_order(RankedPlan& ranked, core::Diagnostics& diagnostics) const {
    if (ranked.plan.layout.pipeline == 1) return;
    const cluster::Cluster& cluster = targets_[ranked.candidate].cluster;
    std::optional<OrderedPlan> ordered = with_searched_order(graph_, cluster, ranked.plan, diagnostics);
    if (!ordered || !ordered->evaluation || !ordered->evaluation->fits) return;
    RankedPlan changed;
    changed.candidate = ranked.candidate;
    changed.plan = ordered->plan;
    changed.order = ordered->explanation;
    settle(changed, std::move(*ordered->evaluation));
    if (is_better(changed, ranked)) ranked = std::move(changed);
}

void Search::enumerate() {
    std::map<std::pair<int, GradientHandling>, std::size_t> families;  // of the last group
    for (std::size_t t = 0; t < targets_.size(); ++t) {
        const auto add = [&](const schedule::Plan& plan) {
            if (is_stopped()) return;
            if (entries_.size() % enumerated_between_progress == 0) tell_progress(std::nullopt);
            const Entry* before = entries_.empty() ? nullptr : &entries_.back();
            const bool is_new_layout =
                !before || before->target != t || !(before->plan.layout == plan.layout);
            if (is_new_layout) {
                bounds_.push_back(std::make_unique<GuardedBounds>(targets_[t].cluster, orders_, *stages_[t],
                                                                  known_candidates_[t]));
            }
            if (is_new_layout || before->plan.micro_batch != plan.micro_batch ||
                before->plan.recompute != plan.recompute) {
                groups_.push_back({t, bounds_.size() - 1, {}, false});
                families.clear();
            }
            const auto [family, is_new] = families.try_emplace(
                {plan.passes_per_micro_batch(), GradientHandling(plan)}, families_.size());
            if (is_new) {
                groups_.back().families.push_back(families_.size());
                families_.emplace_back().group = groups_.size() - 1;
            }
            families_[family->second].members.push_back(entries_.size());
            Entry entry;
            entry.target = t;
            entry.layout = bounds_.size() - 1;
            entry.plan = plan;
            if (request_.uses_bounds) entry.stands_for += horizons_of(entry).size();
            result_.account.space += entry.stands_for;
            entries_.push_back(std::move(entry));
        };
        for_each_legal_plan(graph_, targets_[t].cluster,
                            {.global_batch = request_.global_batch,
                             .base = targets_[t].base,
                             .most_virtual_stages = request_.most_virtual_stages,
                             .offload = request_.uses_bounds ? schedule::Offload::none : request_.offload,
                             .limits = request_.limits,
                             .runnable = targets_[t].runnable},
                            add);
    }
}

// Into the queue, or into the account where it is rejected.
void Search::enter(std::size_t i) {
    const Entry& entry = entries_[i];
    if (!entry.rejection) {
        queue_.insert(key_of(i));
        return;
    }
    result_.account.rejected[*entry.rejection] += entry.stands_for;
    keep_shortfall({entry.target, entry.plan, entry.memory.peak,
                    targets_[entry.target].cluster.instance.device.memory, entry.memory.state,
                    entry.memory.pipeline_rank});
}

// The nearest so far is kept.
void Search::keep_shortfall(Shortfall shortfall) {
    if (shortfall.needed <= shortfall.available) return;
    std::optional<Shortfall>& nearest = result_.shortfall;
    if (!nearest || shortfall.needed - shortfall.available < nearest->needed - nearest->available)
        nearest = std::move(shortfall);
}

// What is left is no better than the plans that were found, or was not reached.
void Search::close_queue() {
    SearchAccount& account = result_.account;
    const auto count = [&](double bound, std::size_t plans) {
        (is_beaten(bound) ? account.pruned : account.unvisited) += plans;
    };
    for (const Key& key : queue_) count(std::get<0>(key), entries_[std::get<2>(key)].stands_for);
    for (const auto& [bound, time, f] : unopened_)
        for (const std::size_t i : families_[f].members) count(bound, entries_[i].stands_for);
    first_unvisited_ = least_bound();
}

// Of everything that is not looked at.
std::optional<double> Search::least_bound() const {
    std::optional<double> least;
    if (!queue_.empty()) least = std::get<0>(*queue_.begin());
    if (!unopened_.empty() && (!least || std::get<0>(*unopened_.begin()) < *least))
        least = std::get<0>(*unopened_.begin());
    return least;
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

// The entries of the least bounds, and of those after them the ones whose bounds can be tightened.
Search::Wave Search::next_wave() const {
    Wave next;
    std::size_t looked_at = 0;
    for (auto key = queue_.begin(); key != queue_.end() && !is_beaten(std::get<0>(*key)) &&
                                    next.loose.size() < tightened_at_once && looked_at < looked_at_in_a_wave;
         ++key, ++looked_at) {
        const std::size_t i = std::get<2>(*key);
        if (!entries_[i].is_tight) next.loose.push_back(i);
        if (next.taken.size() < wave) {
            next.taken.push_back(i);
            next.is_tight = next.is_tight && entries_[i].is_tight;
        } else if (next.is_tight) {
            break;
        }
    }
    return next;
}

// A first plan is worth more than punctuality: entries come first that need so little memory that they surely
// fit.
Search::Wave Search::late_wave() const {
    const auto hurry_key = [&](std::size_t i) {
        const Entry& entry = entries_[i];
        const bool is_roomy =
            entry.memory.peak * roomy <= targets_[entry.target].cluster.instance.device.memory;
        return std::tuple(!is_roomy, is_roomy ? entry.bound : entry.memory.peak.value, i);
    };
    Wave next;
    for (const Key& key : queue_) next.taken.push_back(std::get<2>(key));
    const auto last = next.taken.begin() + static_cast<std::ptrdiff_t>(std::min(wave, next.taken.size()));
    std::partial_sort(next.taken.begin(), last, next.taken.end(),
                      [&](std::size_t a, std::size_t b) { return hurry_key(a) < hurry_key(b); });
    next.taken.erase(last, next.taken.end());
    std::copy_if(next.taken.begin(), next.taken.end(), std::back_inserter(next.loose),
                 [&](std::size_t i) { return entries_[i].is_open || !entries_[i].is_bounded; });
    next.is_tight = next.loose.empty();
    return next;
}

// Entries without bounds of their own get them, the others those of their compute order.
void Search::tighten_all(const std::vector<std::size_t>& loose) {
    for (const std::size_t i : loose) queue_.erase(key_of(i));
    std::vector<bool> was_bounded;
    for (const std::size_t i : loose) was_bounded.push_back(entries_[i].is_bounded);
    work_on(loose.size(), [&](std::size_t i) { tighten(entries_[loose[i]]); });
    for (std::size_t l = 0; l < loose.size(); ++l) {
        const std::size_t i = loose[l];
        if (!was_bounded[l]) offload_where_needed(i);
        if (const std::size_t skipped = std::exchange(entries_[i].skipped, 0); skipped > 0)
            result_.account.rejected[Rejection::activations] += skipped;
        enter(i);
    }
}

void Search::simulate(const std::vector<std::size_t>& taken, core::Diagnostics& diagnostics) {
    SearchAccount& account = result_.account;
    for (const std::size_t i : taken) queue_.erase(key_of(i));
    std::vector<RankedPlan> ranked(taken.size());
    std::vector<std::optional<Rejection>> rejections(taken.size());
    std::vector<core::Diagnostics> problems(taken.size());
    const std::vector<char> is_simulated = work_on(
        taken.size(), [&](std::size_t i) { evaluate(taken[i], ranked[i], rejections[i], problems[i]); });
    for (std::size_t i = 0; i < ranked.size(); ++i) {
        if (!is_simulated[i]) {
            enter(taken[i]);
            continue;
        }
        entries_[taken[i]].is_taken = true;
        if (std::optional<Entry> next = after_taking(entries_[taken[i]], rejections[i])) {
            entries_.push_back(std::move(*next));
            enter(entries_.size() - 1);
        }
        const Entry& entry = entries_[taken[i]];
        if (!rejections[i]) {
            ++account.evaluated;
            account.pruned += entry.stands_for - 1;
            if (request_.keeps_front) add_to_front(result_.front, ranked[i]);
            result_.plans.push_back(std::move(ranked[i]));
            continue;
        }
        if (!account.rejected.contains(*rejections[i]) && problems[i].has_errors())
            diagnostics.append(problems[i]);
        account.rejected[*rejections[i]] += entry.stands_for;
        const sim::Evaluation& evaluation = ranked[i].evaluation;
        if (rejections[i] == Rejection::simulated_peak)
            keep_shortfall({ranked[i].candidate, ranked[i].plan, evaluation.peak_memory,
                            evaluation.available_memory, entry.memory.state, 0});
    }
    std::stable_sort(result_.plans.begin(), result_.plans.end(), is_better);
    if (result_.plans.size() > request_.keep) result_.plans.resize(request_.keep);
}

std::vector<char> Search::work_on(std::size_t count, const std::function<void(std::size_t item)>& work) {
    std::vector<char> is_done(count, 0);
    core::for_each_in_parallel(count, request_.threads, [&](std::size_t item, int thread) {
        if (is_stopped()) return;
        if (thread == 0) tell_progress(told_least_);
        work(item);
        is_done[item] = 1;
    });
    return is_done;
}

void Search::tell_progress(std::optional<double> least) {
    told_least_ = least;
    if (!request_.progress) return;
    std::size_t rejected = 0;
    for (const auto& [reason, count] : result_.account.rejected) rejected += count;
    SearchProgress at{.space = result_.account.space,
                      .looked_at = result_.account.evaluated + result_.account.pruned + rejected,
                      .seconds = elapsed()};
    if (least && std::isfinite(*least)) at.lower_bound = least;
    if (!result_.plans.empty()) at.best_value = best_value();
    request_.progress(at);
}

// `share` of the limit is for everything up to the end of these waves.
void Search::search_waves(core::Diagnostics& diagnostics, double share) {
    while (const std::optional<double> least = least_bound()) {
        const bool is_over = is_late(share);
        if (is_beaten(*least) || (is_over && !result_.plans.empty()) || is_stopped()) return;
        tell_progress(*least);
        if (const std::vector<std::size_t> opened = next_families(); !opened.empty()) {
            open_families(opened);
            continue;
        }
        const Wave next = is_over ? late_wave() : next_wave();
        if (request_.uses_bounds && !next.is_tight) tighten_all(next.loose);
        else simulate(next.taken, diagnostics);
    }
}

double Search::best_value() const {
    return result_.plans.empty() ? std::numeric_limits<double>::infinity() : result_.plans.front().value;
}

double Search::least_bound_of(const Group& group) const {
    double least = std::numeric_limits<double>::infinity();
    for (const std::size_t f : group.families) least = std::min(least, families_[f].bound);
    return least;
}

// Where people begin: tensor parallelism inside a node, no more pipeline than memory asks for, a micro-batch
// of one sample, sharded optimizer state.
std::vector<std::size_t> Search::usual_groups() {
    std::map<std::tuple<std::size_t, int, int, int>, std::pair<int, std::size_t>>
        chosen;  // by pipeline degree
    for (std::size_t g = 0; g < groups_.size(); ++g) {
        Group& group = groups_[g];
        schedule::Plan plan = entries_[families_[group.families.front()].members.front()].plan;
        const schedule::ParallelLayout& layout = plan.layout;
        if (plan.micro_batch != 1 || layout.tensor > targets_[group.target].cluster.instance.devices)
            continue;
        const auto key =
            std::tuple(group.target, layout.tensor, layout.expert, core::position_of(plan.recompute));
        const auto known = chosen.find(key);
        if (known != chosen.end() && known->second.first <= layout.pipeline) continue;
        plan.schedule = "1f1b";
        if (plan.virtual_stages > 1) {
            plan.virtual_stages = 1;
            const std::shared_ptr<const RunnablePlans>& runnable = targets_[group.target].runnable;
            plan.partition = targets_[group.target].base.partition;
            if (runnable && runnable->partition)
                plan.partition = runnable->partition(plan.stages()).value_or(plan.partition);
        }
        plan.keep_sequences_whole();
        plan.shard_degree = 0;
        if (layout.data > 1) plan.sharding = schedule::Sharding::optimizer;
        if (!bounds_[group.layout]->bounds.never_fits(plan))
            chosen.insert_or_assign(key, std::pair(layout.pipeline, g));
    }
    std::vector<std::size_t> usual;
    for (const auto& [key, group] : chosen) usual.push_back(group.second);
    bound_families_of(usual);
    std::stable_sort(usual.begin(), usual.end(), [&](std::size_t a, std::size_t b) {
        return least_bound_of(groups_[a]) < least_bound_of(groups_[b]);
    });
    if (usual.size() > most_usual_groups) usual.resize(most_usual_groups);
    return usual;
}

// One step along one axis: recomputation, or degrees and the micro-batch, to the next value that the space
// has or by a factor of two. (315 nodes have no factor of two.)
std::vector<std::size_t> Search::neighbours_of(std::size_t group) {
    const auto plan_of = [&](std::size_t g) -> const schedule::Plan& {
        return entries_[families_[groups_[g].families.front()].members.front()].plan;
    };
    const schedule::Plan& own = plan_of(group);
    constexpr int axes = 5;
    const auto places = [](const schedule::Plan& plan) {
        const schedule::ParallelLayout& layout = plan.layout;
        return std::array<int, axes>{layout.tensor, layout.pipeline, layout.context, layout.expert,
                                     plan.micro_batch};
    };
    std::array<std::set<int>, axes> values;
    for (std::size_t g = 0; g < groups_.size(); ++g)
        if (groups_[g].target == groups_[group].target)
            for (std::size_t axis = 0; axis < axes; ++axis) values[axis].insert(places(plan_of(g))[axis]);
    const auto steps = [&](const schedule::Plan& other) {
        int moved = own.recompute == other.recompute ? 0 : 1;
        for (std::size_t axis = 0; axis < axes; ++axis) {
            const auto [low, high] = std::minmax({places(own)[axis], places(other)[axis]});
            const bool is_next = low < high && *values[axis].upper_bound(low) == high;
            moved += low == high ? 0 : is_next || high == 2 * low ? 1 : 2;
        }
        return moved;
    };
    std::vector<std::size_t> near;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
        if (groups_[g].is_probed || g == group || groups_[g].target != groups_[group].target) continue;
        const schedule::Plan& other = plan_of(g);
        const int moved = steps(other);
        const bool trades = own.layout.data == other.layout.data && own.micro_batch == other.micro_batch &&
                            own.recompute == other.recompute && own.layout.context == other.layout.context &&
                            own.layout.expert == other.layout.expert;  // tensor against pipeline
        if (moved == 1 || (trades && moved == 2)) near.push_back(g);
    }
    bound_families_of(near);
    std::erase_if(near, [&](std::size_t g) { return least_bound_of(groups_[g]) >= best_value(); });
    std::stable_sort(near.begin(), near.end(), [&](std::size_t a, std::size_t b) {
        return least_bound_of(groups_[a]) < least_bound_of(groups_[b]);
    });
    return near;
}

// Simulates the plans of a group whose bounds are least, until some fit.
void Search::probe(std::size_t group, core::Diagnostics& diagnostics) {
    groups_[group].is_probed = true;
    bound_families_of({group});
    std::vector<std::size_t> opened, members;
    for (const std::size_t f : groups_[group].families) {
        if (families_[f].is_open) opened.push_back(f);
        members.insert(members.end(), families_[f].members.begin(), families_[f].members.end());
    }
    open_families(opened);
    const auto candidates = [&] {
        std::vector<std::size_t> found;
        for (const std::size_t i : members)
            if (!entries_[i].rejection && !entries_[i].is_taken && entries_[i].bound < best_value())
                found.push_back(i);
        std::stable_sort(found.begin(), found.end(),
                         [&](std::size_t a, std::size_t b) { return key_of(a) < key_of(b); });
        return found;
    };
    std::vector<std::size_t> loose = candidates();
    std::erase_if(loose, [&](std::size_t i) { return entries_[i].is_bounded; });
    tighten_all(loose);
    loose = candidates();
    std::erase_if(loose, [&](std::size_t i) { return entries_[i].is_tight; });
    if (loose.size() > tightened_in_a_probe) loose.resize(tightened_in_a_probe);
    tighten_all(loose);
    for (int tries = 0; tries < tries_of_a_probe; ++tries) {
        std::vector<std::size_t> taken = candidates();
        std::erase_if(taken, [&](std::size_t i) { return !entries_[i].is_tight; });
        if (taken.empty()) return;
        if (taken.size() > simulated_in_a_probe) taken.resize(simulated_in_a_probe);
        const std::size_t evaluated = result_.account.evaluated;
        simulate(taken, diagnostics);
        if (result_.account.evaluated > evaluated) return;
    }
}

// A good plan before anything is proven: from what is usual, uphill along the axes.
void Search::probe_usual_plans(core::Diagnostics& diagnostics) {
    if (!request_.uses_bounds || request_.objective == Objective::memory) return;
    for (const std::size_t group : usual_groups())
        if (!is_stopped() && (!is_late(share_of_probes) || result_.plans.empty())) {
            probe(group, diagnostics);
            tell_progress(std::nullopt);
        }
    while (!result_.plans.empty()) {
        const double before = best_value();
        const RankedPlan& best = result_.plans.front();
        std::optional<std::size_t> own;
        for (std::size_t g = 0; g < groups_.size() && !own; ++g) {
            const Entry& first = entries_[families_[groups_[g].families.front()].members.front()];
            if (groups_[g].target == best.candidate && first.plan.layout == best.plan.layout &&
                first.plan.micro_batch == best.plan.micro_batch &&
                first.plan.recompute == best.plan.recompute)
                own = g;
        }
        if (!own) return;
        for (const std::size_t group : neighbours_of(*own)) {
            if (is_late(share_of_probes)) return;
            probe(group, diagnostics);
            tell_progress(std::nullopt);
            if (best_value() < before) break;
        }
        if (best_value() >= before) return;
    }
}

// Steps of this length or longer are no better than the value, or violate a constraint.
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

Search::PartitionTasks Search::partition_tasks() const {
    PartitionTasks tasks;
    if (request_.objective == Objective::memory) return tasks;
    for (std::size_t f = 0; f < families_.size(); ++f) {
        const core::Seconds bound = families_[f].time_bound;
        const bool is_beaten =
            !result_.plans.empty() && bound >= step_limit(groups_[families_[f].group].target, best_value());
        for (const std::size_t i : families_[f].members) {
            const Entry& entry = entries_[i];
            if (entry.rejection == Rejection::stages || entry.plan.layout.pipeline == 1 ||
                !entry.plan.partition.first_units.empty() ||
                entry.plan.offload != targets_[entry.target].base.offload ||
                !covers_every_partition(entry.plan, graph_.units.size()))
                continue;
            if (is_beaten) ++tasks.beaten;
            else tasks.open.push_back({entry.target, entry.layout, entry.plan, f, bound, bound});
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
    for (const Entry& entry : entries_)
        if (entry.target == ranked.candidate && entry.plan == task.plan) task.layout = entry.layout;
    return task;
}

// In the memory of the device if it can be, else with the longest horizon of offload with which it fits.
// `limit`: steps that are as long are of no use.
std::optional<RankedPlan> Search::simulate_partition(const PartitionTask& task, core::Seconds limit) const {
    const Target& target = targets_[task.target];
    const std::vector<model::OperatorRange> ranges = ranges_of(graph_, task.plan.partition.first_units);
    bool is_hopeless = false;  // with shorter horizons too
    const auto try_plan = [&](const schedule::Plan& plan) -> std::optional<RankedPlan> {
        {
            const std::lock_guard lock(bounds_[task.layout]->guard);
            Bounds& bounds = bounds_[task.layout]->bounds;
            const std::optional<MemoryBound> memory = bounds.memory_of(plan, ranges);
            if (!memory || memory->peak > target.cluster.instance.device.memory ||
                bounds.time_of_copies(plan, ranges) >= limit)
                return std::nullopt;
        }
        if (!is_run(target, plan)) return std::nullopt;
        RankedPlan ranked;
        ranked.candidate = task.target;
        ranked.plan = plan;
        core::Diagnostics unpriced;
        std::optional<sim::Evaluation> evaluation =
            sim::evaluate(graph_, target.cluster, plan, unpriced, quick_options(plan, request_.constants));
        count_work(plan, evaluation);
        is_hopeless = evaluation && evaluation->step_time * Bounds::claimed_share >= limit;
        if (!evaluation || !evaluation->fits) return std::nullopt;
        settle(ranked, std::move(*evaluation));
        return ranked;
    };
    std::optional<RankedPlan> ranked = try_plan(task.plan);
    if (!ranked && request_.offload != schedule::Offload::none &&
        task.plan.offload == schedule::Offload::none) {
        const std::vector<int> horizons = loading_horizons(graph_, target.cluster.instance.device, task.plan);
        schedule::Plan away = task.plan;
        away.offload = request_.offload;
        for (auto horizon = horizons.rbegin(); horizon != horizons.rend() && !ranked && !is_hopeless;
             ++horizon) {
            away.activation_loading_horizon = *horizon;
            ranked = try_plan(away);
        }
    }
    if (ranked && constraint_violated(task.target, ranked->evaluation.step_time)) return std::nullopt;
    return ranked;
}

// Instead of the same plan with another partition, or in its place among the best.
void Search::keep_plan(RankedPlan ranked) {
    const auto is_same = [&](const RankedPlan& other) {
        return other.candidate == ranked.candidate && task_of(other).plan == task_of(ranked).plan;
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

// All of the model's arithmetic at the peak rate of every device.
core::Seconds Search::least_step(const cluster::Cluster& cluster) const {
    schedule::Plan one = targets_.front().base;
    one.layout = {};
    one.micro_batch = 1;
    double flops = 0;
    for (const core::Seconds load : schedule::partition_loads(one, graph_)) flops += load.value;
    const auto peak = cluster.instance.device.peak.find(one.precision.compute);
    if (peak == cluster.instance.device.peak.end()) return core::Seconds(0);
    return core::Flops(flops * request_.global_batch) / peak->second / cluster.device_count();
}

void Search::search_partitions() {
    PartitionMeans means;
    means.simulate = [this](const PartitionTask& task, core::Seconds limit) {
        return simulate_partition(task, limit);
    };
    means.limit = [this](std::size_t target, double value) { return step_limit(target, value); };
    means.least_open = least_bound();
    means.is_late = [this] { return is_late(); };
    means.is_stopped = [this] { return is_stopped(); };
    means.tell_progress = [this] { tell_progress(told_least_); };
    means.work = &work_;
    means.layout = [this](std::size_t layout) {
        return PartitionMeans::Layout{&bounds_[layout]->guard, &bounds_[layout]->bounds};
    };
    means.threads = request_.threads;
    const PartitionTasks tasks = partition_tasks();
    result_.account.covers_partitions = !tasks.open.empty() || tasks.beaten > 0;
    PartitionSearch search(graph_, std::move(means));
    search.exclude(tasks.beaten);
    const auto improve = [&](RankedPlan ranked) {
        if (has_only_partition(ranked)) return true;
        const bool is_done = search.improve(ranked, task_of(ranked));
        keep_plan(std::move(ranked));
        return is_done;
    };
    bool is_settled = true;
    if (!result_.plans.empty()) {
        std::optional<RankedPlan> better = search.find_better(tasks.open, result_.plans.front().value);
        if (better) keep_plan(std::move(*better));
        is_settled = improve(result_.plans.front());
    }
    // Moved cuts may bring one of the others before the first.
    const std::vector<RankedPlan> found = result_.plans;
    for (std::size_t i = 1; i < found.size() && !is_late(share_of_moves); ++i) improve(found[i]);
    result_.account.partitions = search.account();
    is_settled_ = is_settled;
}

// What is said of the first plan is what smsim says: its whole step, verified. Bounds were held against
// values of steps that may have been extrapolated: where one of them was too short, what lies between it and
// the true one was excluded without a reason, and stays open.
void Search::simulate_whole() {
    std::vector<RankedPlan>& plans = result_.plans;
    std::vector<bool> is_whole(plans.size(), false);
    for (std::size_t first = 0; first < plans.size() && !is_whole[first];) {
        RankedPlan& plan = plans[first];
        const double before = plan.value;
        core::Diagnostics known;
        std::optional<sim::Evaluation> whole = sim::evaluate(
            graph_, targets_[plan.candidate].cluster, plan.plan, known, {.constants = request_.constants});
        core::require(whole.has_value(), "a plan that was simulated can be simulated again");
        settle(plan, std::move(*whole));
        const bool is_allowed =
            plan.evaluation.fits && !constraint_violated(plan.candidate, plan.evaluation.step_time);
        if (!is_allowed || plan.value > before * (1 + rounding)) leave_open(before);
        is_whole[first] = true;
        if (!is_allowed) {
            plans.erase(plans.begin() + static_cast<std::ptrdiff_t>(first));
            is_whole.erase(is_whole.begin() + static_cast<std::ptrdiff_t>(first));
            continue;
        }
        // It stays the first, or comes behind what is better now.
        std::size_t place = first;
        while (place + 1 < plans.size() && is_better(plans[place + 1], plans[place])) {
            std::swap(plans[place], plans[place + 1]);
            std::vector<bool>::swap(is_whole[place], is_whole[place + 1]);
            ++place;
        }
        if (place == first) break;
    }
}

// The nearest of the plans whose state alone is too much, where nothing fits.
void Search::look_for_shortfall() {
    for (const Entry& entry : entries_) {
        if (is_stopped()) return;
        if (entry.rejection != Rejection::state || entry.memory.peak.value > 0) continue;
        const std::optional<MemoryBound> memory = bounds_[entry.layout]->bounds.memory(entry.plan);
        if (memory)
            keep_shortfall({entry.target, entry.plan, memory->peak,
                            targets_[entry.target].cluster.instance.device.memory, memory->state,
                            memory->pipeline_rank});
    }
}

void Search::search_orders(core::Diagnostics& diagnostics) {
    std::vector<RankedPlan>& plans = result_.plans;
    for (RankedPlan& ranked : plans)
        if (!is_stopped()) search_order(ranked, diagnostics);
    std::stable_sort(plans.begin(), plans.end(), is_better);
    // Plans that differed in their schedule alone may have come to one order.
    plans.erase(std::unique(plans.begin(), plans.end(),
                            [](const RankedPlan& a, const RankedPlan& b) {
                                return a.candidate == b.candidate && a.plan == b.plan;
                            }),
                plans.end());
}

void Search::explain_plans() {
    for (std::size_t i = 0; i < result_.plans.size(); ++i) {
        RankedPlan& plan = result_.plans[i];
        plan.bound_by = bound_by(plan.evaluation);
        const RankedPlan* other = result_.plans.size() < 2 ? nullptr : &result_.plans[i == 0 ? 1 : 0];
        plan.why = compare(plan, other, i == 0, targets_, request_.objective);
    }
}

// `registered`: the best value of a registered schedule.
void Search::judge_bounds(double registered) {
    SearchAccount& account = result_.account;
    account.best_value = result_.plans.front().value;
    if (result_.plans.front().order) return;
    // The first of the list is the best as soon as nothing unvisited can beat it, though something might
    // still come before the last.
    if (first_unvisited_) leave_open(*first_unvisited_);
    for (const auto& [target, step] : account.partitions.open_bounds)
        leave_open(value_of(target, step, core::Bytes(0)));
    for (const cluster::Cluster& cluster : request_.unsearched) {
        const core::Seconds step = least_step(cluster);
        if (constraint_violated(cluster, step)) continue;
        ++account.bounded_targets;
        leave_open(request_.objective == Objective::memory ? 0.0
                   : request_.objective == Objective::cost ? (cluster::price(cluster) * step).value
                                                           : step.value);
    }
    account.is_proven_optimal = (!open_ || *open_ >= registered) && is_settled_;
    account.lower_bound = open_ ? std::min(registered, *open_) : registered;
}

SearchResult Search::run(core::Diagnostics& diagnostics) {
    // Every legal plan is an entry, or one of the plans that an entry stands for.
    enumerate();
    // A plan that is usually good is found, and the best within single steps of it.
    probe_usual_plans(diagnostics);
    // Every family has a bound of the work of its plans, or a rejection.
    bound_families();
    // Nothing is better than the best but other partitions of plans, unless time is up.
    search_waves(diagnostics, share_of_waves);
    // No partition of the plans whose partitions are covered is better than the first, and no move of a cut
    // makes a plan better that is kept, unless time is up.
    if (request_.uses_bounds) search_partitions();
    // The plans kept are the best of those simulated, and none that was excluded is better than the last.
    wanted_ = request_.keep;
    search_waves(diagnostics, 1);
    // Every plan of the space is in exactly one part of the account.
    close_queue();
    if (result_.plans.empty()) look_for_shortfall();
    // Values of the plans kept are those of their whole steps, best first.
    simulate_whole();
    if (request_.keeps_front)
        for (const RankedPlan& plan : result_.plans) add_to_front(result_.front, plan);
    const core::Seconds searched = elapsed();
    std::optional<double> registered;
    if (!result_.plans.empty()) registered = result_.plans.front().value;
    // No plan is worse than with its registered schedule, and no two plans are the same.
    if (request_.searches_orders) search_orders(diagnostics);
    // Every plan says what binds it and how it compares.
    explain_plans();
    // The account says what is proven of the first plan.
    if (registered) judge_bounds(*registered);
    SearchAccount& account = result_.account;
    account.seconds = elapsed();
    account.cpu_seconds = core::Seconds(double(std::clock() - cpu_begin_) / CLOCKS_PER_SEC);
    if (searched.value > 0)
        account.evaluations_per_second = static_cast<double>(account.evaluated) / searched.value;
    return std::move(result_);
}

}  // namespace

std::vector<std::string> covered_axes(const SearchAccount& account) {
    std::vector<std::string> axes = {
        "nodes",          "data_parallel",    "tensor_parallel", "pipeline_parallel",
        "virtual_stages", "context_parallel", "expert_parallel", "schedule",
        "segments",       "sharding",         "recompute",       "micro_batch"};
    if (account.covers_partitions) axes.push_back("partition");
    return axes;
}

std::vector<std::pair<std::string, std::string>> fixed_axes(const SearchAccount& account) {
    return {
        {"partition",
         account.covers_partitions
             ? fmt::format(
                   "of plans with several stages a rank and more than {:.0f} partitions, and of plans "
                   "that offload: the longest stage is shortest; of the first no move of one cut "
                   "by one unit is better",
                   most_partitions)
             : "the longest stage is shortest; of the first plan no move of one cut by one unit is "
               "better"},
        {"shard_degree", "all replicas, or those of one node"},
        {"offload", "only what does not fit, with the longest activation_loading_horizon that does"},
        {"sequence_parallel", "wherever tokens divide"},
        {"gradient_bucket", "of the base plan"},
        {"overlaps_gradient_reduction", "of the base plan"},
        {"overlaps_parameter_gathering", "of the base plan"},
        {"fused_cross_entropy", "of the base plan"},
        {"attention", "of the base plan"},
        {"precision", "of the base plan"},
        {"communication", "of the base plan"},
        {"collective", "of the base plan"},
        {"framework", "of the base plan"},
    };
}

std::string_view reason_of(Rejection rejection) {
    switch (rejection) {
        case Rejection::activations: return "activations exceed memory";
        case Rejection::not_run: return "not run by what it is for";
        case Rejection::stages: return "fewer layers than stages";
        case Rejection::deadline: return "later than the deadline";
        case Rejection::host_memory: return "offloaded activations exceed the memory of the host";
        case Rejection::budget: return "over the budget";
        case Rejection::state: return "parameters, gradients and optimizer state exceed memory";
        case Rejection::simulated_peak: return "simulated peak exceeds memory";
        case Rejection::no_figure: return "the device has no figure for it";
    }
    throw core::InternalError("broken promise: every rejection has a reason");
}

SearchResult search_plans(const model::ModelGraph& graph, const std::vector<Target>& targets,
                          const SearchRequest& request, core::Diagnostics& diagnostics) {
    return Search(graph, targets, request).run(diagnostics);
}

std::optional<schedule::Plan> find_fitting_plan(const model::ModelGraph& graph, const Target& target,
                                                int global_batch, schedule::Offload offload,
                                                const PlanLimits& limits) {
    // Several stages a rank need no less memory; limits may know only schedules that have them.
    const int most_virtual_stages = limits.schedules.empty() ? 1 : SpaceRequest().most_virtual_stages;
    const std::vector<schedule::Plan> plans = legal_plans(graph, target.cluster,
                                                          {.global_batch = global_batch,
                                                           .base = target.base,
                                                           .most_virtual_stages = most_virtual_stages,
                                                           .limits = limits,
                                                           .runnable = target.runnable});
    OrderCollection orders;
    StageCollection stages(graph, target.cluster.instance.device);
    Bounds bounds(target.cluster, orders, stages);
    const core::Bytes available = target.cluster.instance.device.memory;
    for (const bool offloads : {false, true}) {
        if (offloads &&
            (offload == schedule::Offload::none || target.base.offload != schedule::Offload::none))
            break;
        std::vector<std::pair<double, schedule::Plan>> order;
        for (schedule::Plan plan : plans) {
            // The least memory of a family: smallest micro-batch, everything recomputed, activations loaded
            // as late as possible; limits may know no such plan.
            if ((plan.micro_batch != 1 && limits.micro_batch.empty()) ||
                (plan.recompute != schedule::Recompute::full && limits.recompute.empty()))
                continue;
            if (offloads) {
                const std::vector<int> horizons =
                    loading_horizons(graph, target.cluster.instance.device, plan);
                if (horizons.empty()) continue;
                plan.offload = offload;
                plan.activation_loading_horizon = horizons.front();
            }
            const std::optional<MemoryBound> memory = bounds.memory(plan);
            if (memory && memory->peak <= available && (!offloads || bounds.offloads_anything(plan)))
                order.emplace_back(memory->peak.value, std::move(plan));
        }
        std::stable_sort(order.begin(), order.end(),
                         [](const auto& a, const auto& b) { return a.first < b.first; });
        for (std::size_t i = 0; i < std::min(order.size(), most_fitting_tries); ++i) {
            core::Diagnostics diagnostics;
            schedule::Plan plan = order[i].second;
            if (const schedule::Partition* partition = stages.partition(plan)) plan.partition = *partition;
            // How much is offloaded at a time depends on the speed of the copies.
            sim::EvaluateOptions options;
            options.memory_only = !offloads;
            if (offloads) options.most_micro_batches = simulated_micro_batches(plan);
            const std::optional<sim::Evaluation> evaluation =
                sim::evaluate(graph, target.cluster, plan, diagnostics, options);
            if (evaluation && evaluation->fits && is_run(target, plan)) return plan;
        }
    }
    return std::nullopt;
}

}  // namespace planner
