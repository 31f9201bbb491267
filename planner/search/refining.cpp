#include <algorithm>
#include <utility>

#include "planner/context_communication.h"
#include "planner/refinement.h"
#include "planner/search/search_state.h"

namespace planner {

namespace {

// Share by which the first plan must get better: what is less is not worth the moves of cuts that follow.
constexpr double least_gain = 1e-4;

// The task of another plan, of this one with its own cuts; nothing where limits do not allow it.
void add_changed(std::vector<PartitionTask>& tasks, PartitionTask task, schedule::Plan plan,
                 const PlanLimits& limits) {
    if (!limits.allows(plan) || (plan.recomputes_by_stage() && !limits.recompute.empty())) return;
    plan.offload = task.plan.offload;
    plan.activation_loading_horizon = task.plan.activation_loading_horizon;
    task.plan = std::move(plan);
    tasks.push_back(std::move(task));
}

}  // namespace

// Which of them is best of those that are better than the first plan by the least gain, and that plan. False
// where the search was stopped before.
bool Search::try_changed(const std::vector<PartitionTask>& tasks,
                         std::optional<std::pair<std::size_t, RankedPlan>>& best) {
    const double limit = result_.plans.front().value * (1 - least_gain);
    std::vector<std::optional<RankedPlan>> changed(tasks.size());
    const std::vector<char> is_done = work_on(tasks.size(), [&](std::size_t t) {
        changed[t] = simulate_partition(tasks[t], step_limit(tasks[t].target, limit));
    });
    const std::size_t done = std::size_t(std::count(is_done.begin(), is_done.end(), 1));
    result_.account.refinements += done;
    for (const std::optional<RankedPlan>& ranked : changed)
        if (ranked) note_step(*ranked);
    for (std::size_t t = 0; t < tasks.size(); ++t)
        if (changed[t] && changed[t]->value < limit && (!best || is_better(*changed[t], best->second)))
            best.emplace(t, std::move(*changed[t]));
    return done == tasks.size();
}

// The first plan with one thing changed, while that makes it better. False where time was up before.
bool Search::refine_first(bool was_refined) {
    for (; !is_late(); was_refined = true) {
        RankedPlan& first = result_.plans.front();
        const PartitionTask task = task_of(first);
        std::vector<PartitionTask> tasks;
        for (const schedule::Plan& plan : refinements(first.plan, was_refined))
            add_changed(tasks, task, plan, request_.limits);
        schedule::Plan other = first.plan;
        for (const auto communication : communication_choices(graph_, first.plan, true)) {
            other.context_communication = communication;
            if (communication != first.plan.context_communication)
                add_changed(tasks, task, other, request_.limits);
        }
        std::optional<std::pair<std::size_t, RankedPlan>> best;
        if (!try_changed(tasks, best)) return false;
        // Another schedule takes longer to simulate than anything else.
        tasks.clear();
        if (!best)
            for (const schedule::Plan& plan : schedules_instead(first.plan, was_refined))
                add_changed(tasks, task, plan, request_.limits);
        if (!try_changed(tasks, best)) return false;
        if (!best) return true;
        first = std::move(best->second);
    }
    return false;
}

// Plans behind the first with what that one was refined to: its gain may be theirs, and be larger. True where
// one of them comes before the first by that.
bool Search::refine_others() {
    std::vector<RankedPlan>& plans = result_.plans;
    std::vector<PartitionTask> tasks;
    std::vector<std::size_t> refined;  // index into plans
    for (std::size_t p = 1; p < plans.size(); ++p)
        for (const schedule::Plan& plan : refined_alike(plans[p].plan, plans.front().plan)) {
            // What was no better than a first plan before is no better than this one.
            const std::pair tried(plans[p].candidate, plan);
            if (std::find(refined_alike_.begin(), refined_alike_.end(), tried) != refined_alike_.end())
                continue;
            refined_alike_.push_back(tried);
            add_changed(tasks, task_of(plans[p]), plan, request_.limits);
            refined.resize(tasks.size(), p);
        }
    std::optional<std::pair<std::size_t, RankedPlan>> best;
    try_changed(tasks, best);
    if (!best) return false;
    plans[refined[best->first]] = std::move(best->second);
    std::stable_sort(plans.begin(), plans.end(), is_better);
    return true;
}

// Values of the first plan that the space has not, its cuts again where one of them is better, and the plans
// behind it with these values.
void Search::refine(PartitionSearch& search, bool was_refined) {
    bool is_changed = !result_.plans.empty();
    while (is_changed) {
        const schedule::Plan before = result_.plans.front().plan;
        result_.account.is_refined = refine_first(was_refined);
        const schedule::Plan refined = result_.plans.front().plan;
        is_changed = !(refined == before);
        was_refined = was_refined || is_changed;
        if (is_changed) {
            move_cuts(search, {result_.plans.front()});
            is_changed = !(result_.plans.front().plan == refined);
        }
        if (is_changed || !was_refined || is_late()) continue;
        is_changed = refine_others();
        if (is_changed) {
            move_cuts(search, {result_.plans.front()});
            continue;
        }
        // What it was refined to may be best with cuts that lie far from its own.
        try_chosen_partitions(search, {result_.plans.front()});
        is_changed = !(result_.plans.front().plan == refined);
    }
}

// What the first plan was refined to may make one better that was listed since.
void Search::refine_listed(PartitionSearch& search) {
    if (result_.plans.empty() || is_late() || !refine_others()) return;
    move_cuts(search, {result_.plans.front()});
    refine(search, true);
}

}  // namespace planner
