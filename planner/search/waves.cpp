#include <algorithm>
#include <iterator>

#include "core/diagnostics.h"
#include "planner/pareto.h"
#include "planner/search/search_state.h"
#include "schedule/pass/lower.h"
#include "schedule/pipeline/registry.h"
#include "schedule/plan/partition.h"

namespace planner {

namespace {

// A late search takes plans first whose memory bound, times this, is within the device: a fifth of the memory
// is then free for what a simulation finds beyond the bound.
constexpr double roomy = 1.25;
// Plans simulated before their results are looked at, and plans whose bounds are tightened at once. Both are
// fixed: what a wave may skip depends on the waves before it only, so the answer does not depend on the
// threads.
constexpr std::size_t wave = 4, tightened_at_once = 128;
// A shorter loading horizon holds activations for a shorter time, but in other company: of 440 random plans
// three needed up to 0.12 % more with the shortest than with a longer one. Share of the memory by which it
// must be exceeded.
constexpr double least_excess = 0.005;
// Tight entries are passed over for loose ones behind them, so far.
constexpr std::size_t looked_at_in_a_wave = 4 * tightened_at_once;

}  // namespace

// The entries of the least bounds, and of those after them the ones whose bounds can be tightened.
Search::Wave Search::next_wave() const {
    Wave next;
    std::size_t looked_at = 0;
    for (auto key = queue_.begin(); key != queue_.end() && !is_beaten(std::get<0>(*key)) &&
                                    next.loose.size() < tightened_at_once && looked_at < looked_at_in_a_wave;
         ++key, ++looked_at) {
        const std::size_t i = entry_of(*key);
        if (!entries_[i].is_tight) next.loose.push_back(i);
        if (next.taken.size() < wave) {
            next.taken.push_back(i);
            next.is_tight = next.is_tight && entries_[i].is_tight;
            if (times_plans() && !entries_[i].is_timed) next.untimed.push_back(i);
        } else if (next.is_tight) {
            break;
        }
    }
    return next;
}

Search::HurryKey Search::hurry_key(std::size_t i) const {
    const Entry& entry = entries_[i];
    const bool is_roomy = entry.memory.peak * roomy <= targets_[entry.target].cluster.instance.device.memory;
    return HurryKey(!is_roomy, entry.is_open, is_roomy ? entry.bound : entry.memory.peak.value, entry.ordinal,
                    i);
}

// A first plan is worth more than punctuality: entries come first that need so little memory that they surely
// fit.
Search::Wave Search::late_wave() {
    if (!std::exchange(is_hurried_, true))
        for (const Key& key : queue_) hurried_.insert(hurry_key(entry_of(key)));
    Wave next;
    for (auto key = hurried_.begin(); key != hurried_.end() && next.taken.size() < wave; ++key)
        next.taken.push_back(std::get<4>(*key));
    std::copy_if(next.taken.begin(), next.taken.end(), std::back_inserter(next.loose),
                 [&](std::size_t i) { return entries_[i].is_open || !entries_[i].is_bounded; });
    next.is_tight = next.loose.empty();
    return next;
}

// A few micro-batches, and a straight line where the schedule has settled. The ranked few are verified and
// simulated in full afterwards.
void Search::evaluate(std::size_t index, RankedPlan& ranked, std::optional<Rejection>& rejection,
                      core::Diagnostics& diagnostics) const {
    const Entry& entry = entries_[index];
    ranked.candidate = entry.target;
    ranked.plan = partitioned(entry);
    rejection =
        is_run(targets_[entry.target], ranked.plan) ? simulate_plan(ranked, diagnostics) : Rejection::not_run;
}

// Of plans that could pass keys on in a ring a breakdown counts what they exchange.
bool Search::breaks_down(const schedule::Plan& plan) const {
    return request_.keeps_front ||
           (result_.account.tries_rings && plan.cost_context().communicates(plan.context_communication));
}

const sim::Evaluation* Search::known_step(std::size_t target, const schedule::Plan& plan) const {
    return known_steps_.find(target, plan, breaks_down(plan), *stages_[target]);
}

// What a simulation says of its plan, and why it is out of the question, if it is. `lowered`: Programs of the
// plan, or of none.
std::optional<Rejection> Search::simulate_plan(RankedPlan& ranked, core::Diagnostics& diagnostics,
                                               sim::LoweredPrograms* lowered) const {
    std::optional<sim::Evaluation> evaluation;
    if (const sim::Evaluation* known = known_step(ranked.candidate, ranked.plan)) {
        evaluation = *known;
    } else {
        sim::EvaluateOptions options = quickest_options(ranked.candidate, ranked.plan);
        options.lowered = lowered;
        options.stops_at_overflow = true;
        options.breaks_down = breaks_down(ranked.plan);
        evaluation = sim::evaluate(stages_[ranked.candidate]->planned(ranked.plan),
                                   targets_[ranked.candidate].cluster, ranked.plan, diagnostics, options);
        count_work(ranked.plan, evaluation);
    }
    if (!evaluation) return Rejection::no_figure;
    settle(ranked, std::move(*evaluation));
    if (!ranked.evaluation.fits)
        return ranked.evaluation.peak_memory > ranked.evaluation.available_memory ? Rejection::simulated_peak
                                                                                  : Rejection::host_memory;
    return constraint_violated(ranked.candidate, ranked.evaluation.step_time);
}

// Where there was no figure nothing was simulated.
void Search::note_step(const RankedPlan& ranked) {
    if (ranked.evaluation.simulated_instructions > 0 && !known_step(ranked.candidate, ranked.plan))
        known_steps_.add(ranked.candidate, ranked.plan, ranked.evaluation, breaks_down(ranked.plan));
}

// A simulation, and what follows from it.
void Search::settle(RankedPlan& ranked, sim::Evaluation evaluation) const {
    ranked.evaluation = std::move(evaluation);
    ranked.value = value_of(ranked.candidate, ranked.evaluation.step_time, ranked.evaluation.peak_memory);
    if (!request_.tokens) return;
    ranked.training_time = ranked.evaluation.step_time * steps();
    ranked.training_cost = ranked.evaluation.rate * *ranked.training_time;
}

// Would the shortest horizon need too much memory too, if it saves as much of the simulated peak as bounds
// say? Of a step that was not simulated to its end the peak may be greater.
bool Search::seems_never_to_fit(const Entry& entry, const sim::Evaluation& evaluation) const {
    if (evaluation.overflows_early) return true;
    const core::Bytes peak = evaluation.peak_memory;
    schedule::Plan plan = entry.plan;
    plan.activation_loading_horizon = horizons_of(entry)[entry.first];
    const std::optional<MemoryBound> memory = bounds_[entry.layout]->bounds.memory(plan);
    return memory &&
           peak - (entry.memory.peak - memory->peak) > targets_[entry.target].cluster.instance.device.memory;
}

// What comes into question once an entry has been simulated: where memory was exceeded, offload; and shorter
// horizons than the one that was tried. Where none seems to fit, the shortest before the others: if it misses
// by more than a little, none does. Mostly they take longer, but where copies share links with other
// communication they need not.
std::optional<Entry> Search::after_taking(Entry& entry, std::optional<Rejection> rejection,
                                          const sim::Evaluation& evaluation) {
    const core::Bytes peak = evaluation.peak_memory;
    const bool is_first = entry.plan.offload == schedule::Offload::none;
    const bool is_too_large = rejection == Rejection::simulated_peak;
    const bool is_too_slow = rejection == Rejection::deadline || rejection == Rejection::budget;
    const bool goes_on =
        looks_at_every_horizon() || is_too_large || (!is_first && (!rejection || is_too_slow));
    if (!request_.uses_bounds || entry.stands_for <= 1 || !goes_on) return std::nullopt;
    const bool never_fits = is_too_large && entry.is_shortest &&
                            peak > targets_[entry.target].cluster.instance.device.memory * (1 + least_excess);
    const std::tuple alike(entry.layout, entry.plan.micro_batch, entry.plan.recompute);
    if (never_fits) never_fit_.insert(alike);
    else if (entry.is_shortest) never_fit_.erase(alike);
    if (never_fits) return std::nullopt;
    Entry next = is_first ? offloaded(entry) : entry;
    next.is_taken = false;
    if (!is_first) {
        next.is_open = true;
        next.is_tight = false;
        next.stands_for = entry.stands_for - 1;
        next.is_shorter = !looks_at_every_horizon() && !entry.is_shortest && (entry.is_shorter || !rejection);
        next.knows_shortest = entry.knows_shortest || entry.is_shortest;
        next.is_shortest = is_too_large && !looks_at_every_horizon() && !entry.is_shorter &&
                           !next.knows_shortest && next.stands_for > 1 &&
                           seems_never_to_fit(entry, evaluation);
        if (looks_at_every_horizon() || entry.is_shortest) ++next.first;
        else --next.end;
    }
    next.skipped = 0;
    entry.stands_for = 1;
    return next;
}

// Is the very same step among the best, under a schedule that has the same order for this shape
// (interleaved 1F1B of one stage a rank is 1F1B)?
bool Search::has_by_another_name(const RankedPlan& ranked) const {
    return std::any_of(result_.plans.begin(), result_.plans.end(), [&](const RankedPlan& other) {
        if (other.candidate != ranked.candidate || other.value != ranked.value ||
            other.plan.schedule == ranked.plan.schedule)
            return false;
        schedule::Plan renamed = other.plan;
        renamed.schedule = ranked.plan.schedule;
        renamed.schedule_parameters = ranked.plan.schedule_parameters;
        if (!(renamed == ranked.plan)) return false;
        for (const schedule::Plan* plan : {&other.plan, &ranked.plan})
            if (schedule::find_pipeline_schedule(plan->schedule)->orders_by_times) return false;
        core::Diagnostics unneeded;
        std::optional<schedule::Schedule> one = schedule::make_schedule(other.plan, unneeded);
        const std::optional<schedule::Schedule> two = schedule::make_schedule(ranked.plan, unneeded);
        if (one && two) one->name = two->name;
        return one == two;
    });
}

void Search::simulate(const std::vector<std::size_t>& taken, core::Diagnostics& diagnostics) {
    SearchAccount& account = result_.account;
    for (const std::size_t i : taken) {
        leave_queue(i);
        ask_shortest_first(entries_[i]);
    }
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
        note_step(ranked[i]);
        if (!ranked[i].evaluation.overflows_early)
            note_order(ranked[i].plan, true, Settling(ranked[i].evaluation));
        if (rejections[i]) note_too_large(taken[i], *rejections[i], ranked[i].evaluation);
        if (std::optional<Entry> next =
                after_taking(entries_[taken[i]], rejections[i], ranked[i].evaluation)) {
            add(std::move(*next));
            // A longer horizon needs more.
            if (entries_.back().is_shorter) shorter_.push_back(entries_.size() - 1);
            else if ((rejections[i] == Rejection::simulated_peak || entries_.back().knows_shortest) &&
                     !looks_at_every_horizon())
                pursued_.push_back(entries_.size() - 1);
        }
        const Entry& entry = entries_[taken[i]];
        if (!rejections[i]) {
            ++(!entry.is_beside_space() ? account.evaluated
               : entry.plan.context_communication == schedule::ContextCommunication::ring
                   ? account.in_rings
                   : account.partly_recomputed);
            note_for_ring(taken[i], ranked[i]);
            if (entry.stands_for > 1) account.rejected[Rejection::unneeded] += entry.stands_for - 1;
            if (request_.keeps_front) add_to_front(result_.front, ranked[i]);
            result_.near_ties.add(ranked[i], targets_[ranked[i].candidate].cluster.nodes);
            if (entry.is_shorter || entry.knows_shortest) keep_plan(std::move(ranked[i]));
            else if (!has_by_another_name(ranked[i])) result_.plans.push_back(std::move(ranked[i]));
            continue;
        }
        if (!account.rejected.contains(*rejections[i]) && problems[i].has_errors())
            diagnostics.append(problems[i]);
        if (!entry.is_beside_space()) account.rejected[*rejections[i]] += entry.stands_for;
        const sim::Evaluation& evaluation = ranked[i].evaluation;
        if (rejections[i] == Rejection::simulated_peak) {
            entries_[taken[i]].beyond_bound = evaluation.peak_memory - entry.memory.peak;
            keep_shortfall({ranked[i].candidate, ranked[i].plan, evaluation.peak_memory,
                            evaluation.available_memory, entry.memory.state, 0});
        }
    }
    std::stable_sort(result_.plans.begin(), result_.plans.end(), is_better);
    if (result_.plans.size() > request_.keep) result_.plans.resize(request_.keep);
}

// Of a plan that fits with a longer horizon, shorter ones are of interest only as the very best.
void Search::exclude_shorter() {
    std::erase_if(shorter_, [&](std::size_t i) {
        if (entries_[i].is_taken || entries_[i].rejection) return true;
        if (entries_[i].bound < best_value()) return false;
        leave_queue(i);
        result_.account.pruned += entries_[i].stands_for;
        return true;
    });
}

// What would be among the best but for its memory is tried with less of it, at once. Is there such a plan?
bool Search::pursue(core::Diagnostics& diagnostics) {
    std::vector<std::size_t> pursued = std::exchange(pursued_, {});
    const auto is_hopeless = [&](std::size_t i) {
        return entries_[i].rejection || is_beaten(entries_[i].bound);
    };
    std::erase_if(pursued, is_hopeless);
    if (pursued.empty()) return false;
    tighten_all(pursued);
    std::erase_if(pursued, is_hopeless);
    simulate(pursued, diagnostics);
    return true;
}

// `share` of the limit is for everything up to the end of these waves.
void Search::search_waves(core::Diagnostics& diagnostics, double share) {
    while (true) {
        exclude_shorter();
        const std::optional<double> least = least_bound();
        if (!least) return;
        const bool is_over = is_late(share);
        if (is_beaten(*least) || (is_over && !lacks_plan()) || is_late(patience)) return;
        tell_progress(*least);
        if (pursue(diagnostics)) continue;
        if (const std::vector<std::size_t> opened = next_families(); !opened.empty()) {
            open_families(opened);
            continue;
        }
        const Wave next = is_over ? late_wave() : next_wave();
        if (request_.uses_bounds && !next.is_tight) tighten_all(next.loose);
        else if (!next.untimed.empty()) time_all(next.untimed);
        else simulate(next.taken, diagnostics);
    }
}

}  // namespace planner
