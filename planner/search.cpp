#include "planner/search.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/core.h>

#include "core/parallel.h"
#include "planner/bounds.h"
#include "planner/explain.h"
#include "planner/order/plan_order.h"
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
constexpr std::size_t wave = 16, tightened_at_once = 128;
// Fitting plans are looked for among so many of least memory; the others need more.
constexpr std::size_t most_fitting_tries = 8;

// Micro-batches that a candidate is simulated with: five rounds over the pipeline. Longer steps are
// extrapolated where that is exact (sim::EvaluateOptions), shorter ones simulated whole.
int simulated_micro_batches(const schedule::Plan& plan) {
    constexpr int least = 8, rounds = 5;
    return std::max(least, rounds * plan.layout.pipeline);
}

struct Entry {
    std::size_t target = 0;
    schedule::Plan plan;
    double bound = 0;  // of the objective
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
        1;  // plans of the space: itself, and those that need not be looked at unless it fails
    std::size_t skipped = 0;  // of the last choice of a horizon: plans that cannot fit
};

class Search {
public:
    Search(const model::ModelGraph& graph, const std::vector<Target>& targets, const SearchRequest& request)
        : graph_(graph), targets_(targets), request_(request) {
        for (const Target& target : targets)
            stages_.push_back(std::make_unique<StageCollection>(graph, target.cluster.instance.device));
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
        if (!request_.tokens) return std::nullopt;
        core::Seconds total = step * steps();
        if (request_.deadline && total > *request_.deadline) return Rejection::deadline;
        if (request_.budget && cluster::price(targets_[target].cluster) * total > *request_.budget)
            return Rejection::budget;
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
    void bound_all();
    Entry offloaded(const Entry& entry) const;
    std::optional<Entry> after_taking(Entry& entry, std::optional<Rejection> rejection) const;
    void choose_horizon(Entry& entry);
    void tighten(Entry& entry);
    void evaluate(std::size_t index, RankedPlan& ranked, std::optional<Rejection>& rejection,
                  core::Diagnostics& diagnostics) const;
    void settle(RankedPlan& ranked, sim::Evaluation evaluation) const;
    void search_order(RankedPlan& ranked, core::Diagnostics& diagnostics) const;

    const model::ModelGraph& graph_;
    const std::vector<Target>& targets_;
    const SearchRequest& request_;
    struct GuardedBounds {
        GuardedBounds(const cluster::Cluster& cluster, OrderCollection& orders, StageCollection& stages)
            : bounds(cluster, orders, stages) {}
        std::mutex guard;
        Bounds bounds;
    };
    std::vector<Entry> entries_;
    std::vector<std::unique_ptr<GuardedBounds>> bounds_;  // one a layout
    OrderCollection orders_;
    std::vector<std::unique_ptr<StageCollection>> stages_;  // one a target
    Clock::time_point begin_ = Clock::now();
};

void Search::bound_all() {
    // One task a layout: what its plans share is computed once and by one thread.
    struct Task {
        std::size_t begin, end;
    };
    std::vector<Task> tasks;
    for (std::size_t i = 0; i < entries_.size(); ++i) {
        bool is_new = i == 0 || entries_[i].target != entries_[i - 1].target ||
                      !(entries_[i].plan.layout == entries_[i - 1].plan.layout);
        if (is_new) tasks.push_back({i, i});
        tasks.back().end = i + 1;
    }
    bounds_.resize(tasks.size());
    core::for_each_in_parallel(tasks.size(), request_.threads, [&](std::size_t t, int) {
        const std::size_t target = entries_[tasks[t].begin].target;
        bounds_[t] = std::make_unique<GuardedBounds>(targets_[target].cluster, orders_, *stages_[target]);
        Bounds* bounds = &bounds_[t]->bounds;
        for (std::size_t i = tasks[t].begin; i < tasks[t].end; ++i) {
            Entry& entry = entries_[i];
            entry.layout = t;
            const cluster::DeviceSpec& device = targets_[entry.target].cluster.instance.device;
            std::optional<MemoryBound> memory = bounds->memory(entry.plan);
            if (!memory) {
                entry.rejection = Rejection::stages;
                continue;
            }
            entry.memory = *memory;
            if (memory->state + device.context_memory > device.memory) entry.rejection = Rejection::state;
            else if (memory->peak > device.memory) entry.rejection = Rejection::activations;
            if (entry.rejection == Rejection::state || (entry.rejection && entry.stands_for == 1)) continue;
            entry.time_bound = bounds->time(entry.plan);
            entry.bound = value_of(entry.target, entry.time_bound, memory->peak);
            if (!entry.rejection) entry.rejection = constraint_violated(entry.target, entry.time_bound);
        }
    });
    if (!request_.uses_bounds) return;
    const std::size_t count = entries_.size();
    for (std::size_t i = 0; i < count; ++i) {
        Entry& entry = entries_[i];
        if (entry.stands_for == 1 ||
            (entry.rejection != Rejection::activations && !(looks_at_every_horizon() && !entry.rejection)))
            continue;
        Entry away = offloaded(entry);
        entry.stands_for = 1;
        entries_.push_back(std::move(away));
    }
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
        if (entry.is_open) choose_horizon(entry);
        if (entry.rejection) return;
        entry.time_bound = bounds_[entry.layout]->bounds.time_of_order(entry.plan);
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
    if (std::optional<schedule::Partition> partition = schedule::complete_partition(entry.plan, graph_))
        ranked.plan.partition = *partition;
    sim::EvaluateOptions options;
    options.most_micro_batches = simulated_micro_batches(entry.plan);
    options.verifies = false;
    std::optional<sim::Evaluation> evaluation =
        sim::evaluate(graph_, target.cluster, ranked.plan, diagnostics, options);
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

bool is_better(const RankedPlan& a, const RankedPlan& b) {
    return std::pair(a.value, a.evaluation.step_time) < std::pair(b.value, b.evaluation.step_time);
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

SearchResult Search::run(core::Diagnostics& diagnostics) {
    SearchResult result;
    SearchAccount& account = result.account;
    for (std::size_t p = 0; p < targets_.size(); ++p)
        for (schedule::Plan& plan :
             legal_plans(graph_, targets_[p].cluster,
                         {.global_batch = request_.global_batch,
                          .base = targets_[p].base,
                          .most_virtual_stages = request_.most_virtual_stages,
                          .offload = request_.uses_bounds ? schedule::Offload::none : request_.offload})) {
            Entry entry;
            entry.target = p;
            entry.plan = std::move(plan);
            if (request_.uses_bounds) entry.stands_for += horizons_of(entry).size();
            account.space += entry.stands_for;
            entries_.push_back(std::move(entry));
        }
    bound_all();

    // Best first: by bound, then time bound, then target in the space.
    using Key = std::tuple<double, double, std::size_t>;
    const auto key_of = [&](std::size_t i) {
        return Key(entries_[i].bound, entries_[i].time_bound.value, i);
    };
    std::set<Key> queue;
    const auto reject = [&](std::size_t i, Rejection why, std::size_t plans) {
        account.rejected[why] += plans;
        const Entry& entry = entries_[i];
        const core::Bytes available = targets_[entry.target].cluster.instance.device.memory;
        if (entry.memory.peak > available &&
            (!result.shortfall ||
             entry.memory.peak - available < result.shortfall->needed - result.shortfall->available))
            result.shortfall = Shortfall{entry.target, entry.plan,         entry.memory.peak,
                                         available,    entry.memory.state, entry.memory.pipeline_rank};
    };
    const auto enter = [&](std::size_t i) {
        if (!entries_[i].rejection) queue.insert(key_of(i));
        else reject(i, *entries_[i].rejection, entries_[i].stands_for);
    };
    for (std::size_t i = 0; i < entries_.size(); ++i) enter(i);

    std::vector<RankedPlan> best;
    std::optional<double> first_unvisited;  // its bound
    auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - begin_).count(); };
    while (!queue.empty()) {
        const auto is_beaten = [&](const Key& key) {
            return request_.uses_bounds && best.size() >= request_.keep &&
                   std::get<0>(key) >= best.back().value;
        };
        if (is_beaten(*queue.begin())) {
            for (const Key& key : queue) account.pruned += entries_[std::get<2>(key)].stands_for;
            break;
        }
        const bool is_late = request_.time_limit && elapsed() > request_.time_limit->value;
        if (is_late && !best.empty()) {
            for (const Key& key : queue)
                (is_beaten(key) ? account.pruned : account.unvisited) +=
                    entries_[std::get<2>(key)].stands_for;
            first_unvisited = std::get<0>(*queue.begin());
            break;
        }
        std::vector<std::size_t> taken, loose;
        bool is_wave_tight = true;
        if (is_late) {
            // A first plan is worth more than punctuality. Now those come first whose bound leaves a fifth of
            // the memory free, as they surely fit.
            const auto hurry_key = [&](std::size_t i) {
                const Entry& entry = entries_[i];
                const bool is_roomy =
                    entry.memory.peak * roomy <= targets_[entry.target].cluster.instance.device.memory;
                return std::tuple(!is_roomy, is_roomy ? entry.bound : entry.memory.peak.value, i);
            };
            for (const Key& key : queue) taken.push_back(std::get<2>(key));
            const auto last = taken.begin() + static_cast<std::ptrdiff_t>(std::min(wave, taken.size()));
            std::partial_sort(taken.begin(), last, taken.end(),
                              [&](std::size_t a, std::size_t b) { return hurry_key(a) < hurry_key(b); });
            taken.erase(last, taken.end());
            std::copy_if(taken.begin(), taken.end(), std::back_inserter(loose),
                         [&](std::size_t i) { return entries_[i].is_open; });
            is_wave_tight = loose.empty();
        }
        for (auto key = queue.begin();
             !is_late && key != queue.end() && !is_beaten(*key) && loose.size() < tightened_at_once; ++key) {
            const std::size_t i = std::get<2>(*key);
            if (!entries_[i].is_tight) loose.push_back(i);
            if (taken.size() < wave) {
                taken.push_back(i);
                is_wave_tight = is_wave_tight && entries_[i].is_tight;
            } else if (is_wave_tight) {
                break;
            }
        }
        if (request_.uses_bounds && !is_wave_tight) {
            for (const std::size_t i : loose) queue.erase(key_of(i));
            core::for_each_in_parallel(loose.size(), request_.threads,
                                       [&](std::size_t i, int) { tighten(entries_[loose[i]]); });
            for (const std::size_t i : loose) {
                if (const std::size_t skipped = std::exchange(entries_[i].skipped, 0); skipped > 0)
                    account.rejected[Rejection::activations] += skipped;
                enter(i);
            }
            continue;
        }
        for (const std::size_t i : taken) queue.erase(key_of(i));
        std::vector<RankedPlan> ranked(taken.size());
        std::vector<std::optional<Rejection>> rejections(taken.size());
        std::vector<core::Diagnostics> problems(taken.size());
        core::for_each_in_parallel(taken.size(), request_.threads, [&](std::size_t i, int) {
            evaluate(taken[i], ranked[i], rejections[i], problems[i]);
        });
        for (std::size_t i = 0; i < ranked.size(); ++i) {
            if (std::optional<Entry> next = after_taking(entries_[taken[i]], rejections[i])) {
                entries_.push_back(std::move(*next));
                enter(entries_.size() - 1);
            }
            const std::size_t others = entries_[taken[i]].stands_for - 1;
            if (rejections[i]) {
                if (!account.rejected.contains(*rejections[i]) && problems[i].has_errors())
                    diagnostics.append(problems[i]);
                account.rejected[*rejections[i]] += 1 + others;
                const sim::Evaluation& e = ranked[i].evaluation;
                if (rejections[i] == Rejection::simulated_peak &&
                    (!result.shortfall || e.peak_memory - e.available_memory <
                                              result.shortfall->needed - result.shortfall->available))
                    result.shortfall = Shortfall{ranked[i].candidate,
                                                 ranked[i].plan,
                                                 e.peak_memory,
                                                 e.available_memory,
                                                 entries_[taken[i]].memory.state,
                                                 0};
                continue;
            }
            ++account.evaluated;
            account.pruned += others;
            best.push_back(std::move(ranked[i]));
        }
        std::stable_sort(best.begin(), best.end(), is_better);
        if (best.size() > request_.keep) best.resize(request_.keep);
    }

    // The ranked few once more in full: what is printed is what smsim says.
    std::vector<core::Diagnostics> problems(best.size());
    core::for_each_in_parallel(best.size(), request_.threads, [&](std::size_t i, int) {
        std::optional<sim::Evaluation> whole =
            sim::evaluate(graph_, targets_[best[i].candidate].cluster, best[i].plan, problems[i], {});
        core::require(whole.has_value(), "a plan that was simulated can be simulated again");
        settle(best[i], std::move(*whole));
    });
    std::stable_sort(best.begin(), best.end(), is_better);
    const double best_registered = best.empty() ? 0 : best.front().value, searched = elapsed();
    if (request_.searches_orders) {
        for (RankedPlan& ranked : best) search_order(ranked, diagnostics);
        std::stable_sort(best.begin(), best.end(), is_better);
        // What differed in its schedule alone may have come to one order.
        best.erase(std::unique(best.begin(), best.end(),
                               [](const RankedPlan& a, const RankedPlan& b) {
                                   return a.candidate == b.candidate && a.plan == b.plan;
                               }),
                   best.end());
    }
    result.plans = std::move(best);
    for (std::size_t i = 0; i < result.plans.size(); ++i) {
        RankedPlan& plan = result.plans[i];
        plan.bound_by = bound_by(plan.evaluation);
        const RankedPlan* other = result.plans.size() < 2 ? nullptr : &result.plans[i == 0 ? 1 : 0];
        plan.why = compare(plan, other, i == 0, targets_);
    }
    account.seconds = core::Seconds(elapsed());
    account.evaluations_per_second = searched > 0 ? static_cast<double>(account.evaluated) / searched : 0;
    if (!result.plans.empty()) {
        account.best_value = result.plans.front().value;
        // The first of the list is the best as soon as nothing unvisited can beat it, though something might
        // still come before the last.
        if (!result.plans.front().order) {
            account.is_proven_optimal = !first_unvisited || *first_unvisited >= best_registered;
            account.lower_bound =
                account.is_proven_optimal ? best_registered : std::min(best_registered, *first_unvisited);
        }
    }
    return result;
}

}  // namespace

std::string_view reason_of(Rejection rejection) {
    switch (rejection) {
        case Rejection::activations: return "activations exceed memory";
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
                                                int global_batch, schedule::Offload offload) {
    const std::vector<schedule::Plan> plans = legal_plans(
        graph, target.cluster, {.global_batch = global_batch, .base = target.base, .most_virtual_stages = 1});
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
            // The least memory of a family: smallest micro-batch, everything recomputed, and what is kept
            // away as long as it can be.
            if (plan.micro_batch != 1 || plan.recompute != schedule::Recompute::full) continue;
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
            const schedule::Plan& plan = order[i].second;
            // How much is away at once depends on how fast it goes.
            sim::EvaluateOptions options;
            options.memory_only = !offloads;
            if (offloads) options.most_micro_batches = simulated_micro_batches(plan);
            const std::optional<sim::Evaluation> evaluation =
                sim::evaluate(graph, target.cluster, plan, diagnostics, options);
            if (evaluation && evaluation->fits) return plan;
        }
    }
    return std::nullopt;
}

}  // namespace planner
