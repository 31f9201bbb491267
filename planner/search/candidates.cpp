#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "core/parallel.h"
#include "planner/search/search_state.h"

namespace planner {

namespace {

// Some milliseconds of enumeration.
constexpr std::size_t enumerated_between_progress = 4096;

}  // namespace

SpaceRequest Search::space_of(std::size_t target) const {
    return {.global_batch = request_.global_batch,
            .base = targets_[target].base,
            .most_virtual_stages = request_.most_virtual_stages,
            .offload = request_.uses_bounds ? schedule::Offload::none : request_.offload,
            .limits = request_.limits,
            .runnable = targets_[target].runnable};
}

Entry Search::entry_of(const schedule::Plan& plan, std::size_t group, std::size_t ordinal) const {
    Entry entry;
    entry.target = groups_[group].target;
    entry.layout = groups_[group].layout;
    entry.group = group;
    entry.ordinal = ordinal;
    entry.plan = plan;
    if (request_.uses_bounds) entry.stands_for += horizons_of(entry).size();
    return entry;
}

void Search::enumerate() {
    std::map<FamilyKey, std::size_t> families;  // of the last group
    for (std::size_t t = 0; t < targets_.size(); ++t) {
        const auto add = [&](const schedule::Plan& plan) {
            if (is_stopped()) return;
            if (enumerated_ % enumerated_between_progress == 0) tell_progress(std::nullopt);
            const bool is_first = groups_.empty() || groups_.back().target != t;
            const schedule::Plan* before =
                is_first ? nullptr : &families_[groups_.back().families.front()].first;
            const bool is_new_layout = !before || !(before->layout == plan.layout);
            if (is_new_layout) {
                bounds_.push_back(std::make_unique<GuardedBounds>(targets_[t].cluster, orders_, *stages_[t],
                                                                  known_candidates_[t]));
            }
            if (is_new_layout || before->micro_batch != plan.micro_batch ||
                before->recompute != plan.recompute || before->tensor_overlap != plan.tensor_overlap ||
                before->context_communication != plan.context_communication) {
                Group& group = groups_.emplace_back();
                group.target = t;
                group.layout = bounds_.size() - 1;
                group.first_ordinal = enumerated_;
                families.clear();
            }
            const auto [place, is_new] = families.try_emplace(family_key(plan), families_.size());
            if (is_new) {
                groups_.back().families.push_back(families_.size());
                Family& family = families_.emplace_back();
                family.group = groups_.size() - 1;
                family.first = plan;
            }
            Family& family = families_[place->second];
            const Entry entry = entry_of(plan, family.group, enumerated_++);
            family.stands_for += entry.stands_for;
            family.divided += is_divided(entry) ? 1 : 0;
            result_.account.space += entry.stands_for;
        };
        for_each_legal_plan(graph_, targets_[t].cluster, space_of(t), add);
    }
}

// The plans of its families once more, now to be kept.
void Search::make_members(std::size_t g) {
    Group& group = groups_[g];
    if (std::exchange(group.is_made, true)) return;
    std::map<FamilyKey, std::size_t> families;
    for (const std::size_t f : group.families) families.emplace(family_key(families_[f].first), f);
    const schedule::Plan& first = families_[group.families.front()].first;
    SpaceRequest space = space_of(group.target);
    space.limits.keep_to_shape(first);
    space.layout = first.layout;
    std::size_t ordinal = group.first_ordinal;
    for_each_legal_plan(graph_, targets_[group.target].cluster, space, [&](const schedule::Plan& plan) {
        Family& family = families_[families.at(family_key(plan))];
        family.members.push_back(entries_.size());
        Entry entry = entry_of(plan, g, ordinal++);
        entry.time_bound = family.time_bound;
        entry.bound = family.bound;
        entries_.push_back(std::move(entry));
    });
}

// A plan beside those that were enumerated.
void Search::add(Entry entry) {
    entry.ordinal = enumerated_++;
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
    if (!entry.is_beside_space()) result_.account.rejected[*entry.rejection] += entry.stands_for;
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
    // By what they lack at least; what lacks more than the nearest is not looked at.
    std::vector<std::pair<core::Bytes, const Entry*>> by_lack;
    for (const Entry& entry : entries_)
        if (entry.rejection == Rejection::state && entry.memory.peak.value <= 0)
            by_lack.emplace_back(bounds_[entry.layout]->bounds.least_state(entry.plan) -
                                     targets_[entry.target].cluster.instance.device.memory,
                                 &entry);
    std::sort(by_lack.begin(), by_lack.end(), [](const auto& a, const auto& b) {
        return std::pair(a.first, a.second->ordinal) < std::pair(b.first, b.second->ordinal);
    });
    std::optional<core::Bytes> nearest;
    if (result_.shortfall) nearest = result_.shortfall->needed - result_.shortfall->available;
    std::map<std::size_t, Shortfall>
        found;  // by ordinal, the order in which the first of the nearest is kept
    for (const auto& [lack, entry] : by_lack) {
        if (is_stopped() || (nearest && lack > *nearest)) break;
        const std::optional<MemoryBound> memory = bounds_[entry->layout]->bounds.memory(entry->plan);
        if (!memory) continue;
        const core::Bytes available = targets_[entry->target].cluster.instance.device.memory;
        if (!nearest || memory->peak - available < *nearest) nearest = memory->peak - available;
        found.emplace(entry->ordinal, Shortfall{entry->target, entry->plan, memory->peak, available,
                                                memory->state, memory->pipeline_rank});
    }
    for (auto& [ordinal, shortfall] : found) keep_shortfall(std::move(shortfall));
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

// Infinity, where nothing is known that a plan has to be better than.
double Search::best_value() const {
    const double least = request_.better_than.value_or(std::numeric_limits<double>::infinity());
    return result_.plans.empty() ? least : std::min(least, result_.plans.front().value);
}

// What is left is no better than the plans that were found, or was not reached.
void Search::close_queue() {
    SearchAccount& account = result_.account;
    const auto count = [&](double bound, std::size_t plans) {
        (is_beaten(bound) ? account.pruned : account.unvisited) += plans;
    };
    for (const Key& key : queue_) count(std::get<0>(key), entries_[entry_of(key)].stands_for);
    for (const auto& [bound, time, f] : unopened_) count(bound, families_[f].stands_for);
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
    if (!result_.plans.empty()) at.best_value = result_.plans.front().value;
    request_.progress(at);
}

}  // namespace planner
