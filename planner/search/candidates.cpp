#include <algorithm>
#include <cmath>
#include <limits>

#include "core/parallel.h"
#include "planner/search/search_state.h"

namespace planner {

namespace {

// Some milliseconds of enumeration.
constexpr std::size_t enumerated_between_progress = 4096;

}  // namespace

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
                Group& group = groups_.emplace_back();
                group.target = t;
                group.layout = bounds_.size() - 1;
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
            entry.group = groups_.size() - 1;
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

// A plan beside those that were enumerated.
void Search::add(Entry entry) {
    entries_.push_back(std::move(entry));
    const std::size_t i = entries_.size() - 1;
    if (Group& group = groups_[entries_[i].group]; group.is_probed) group.members.push_back(i);
    enter(i);
}

// Into the queue, or into the account where it is rejected.
void Search::enter(std::size_t i) {
    const Entry& entry = entries_[i];
    if (!entry.rejection) {
        queue_.insert(key_of(i));
        if (is_hurried_) hurried_.insert(hurry_key(i));
        return;
    }
    result_.account.rejected[*entry.rejection] += entry.stands_for;
    keep_shortfall({entry.target, entry.plan, entry.memory.peak,
                    targets_[entry.target].cluster.instance.device.memory, entry.memory.state,
                    entry.memory.pipeline_rank});
}

void Search::leave_queue(std::size_t i) {
    queue_.erase(key_of(i));
    if (is_hurried_) hurried_.erase(hurry_key(i));
}

// The nearest so far is kept.
void Search::keep_shortfall(Shortfall shortfall) {
    if (shortfall.needed <= shortfall.available) return;
    std::optional<Shortfall>& nearest = result_.shortfall;
    if (!nearest || shortfall.needed - shortfall.available < nearest->needed - nearest->available)
        nearest = std::move(shortfall);
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

double Search::least_bound_of(const Group& group) const {
    double least = std::numeric_limits<double>::infinity();
    for (const std::size_t f : group.families)
        if (families_[f].is_open) least = std::min(least, families_[f].bound);
    return least;
}

// Of everything that is not looked at.
std::optional<double> Search::least_bound() const {
    std::optional<double> least;
    if (!queue_.empty()) least = std::get<0>(*queue_.begin());
    if (!unopened_.empty() && (!least || std::get<0>(*unopened_.begin()) < *least))
        least = std::get<0>(*unopened_.begin());
    return least;
}

double Search::best_value() const {
    return result_.plans.empty() ? std::numeric_limits<double>::infinity() : result_.plans.front().value;
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

}  // namespace planner
