#include <algorithm>

#include "planner/context_communication.h"
#include "planner/refinement.h"
#include "planner/search/search_state.h"

namespace planner {

namespace {

// Share by which the first plan must get better: what is less is not worth the moves of cuts that follow.
constexpr double least_gain = 1e-3;

}  // namespace

// The first plan with one thing changed, while that makes it better. False where time was up before.
bool Search::refine_first(bool was_refined) {
    std::vector<RankedPlan>& plans = result_.plans;
    for (; !is_late(); was_refined = true) {
        const RankedPlan first = plans.front();
        std::vector<schedule::Plan> plans_of_first = refinements(first.plan, was_refined);
        for (const auto communication : communication_choices(graph_, first.plan, true)) {
            if (communication == first.plan.context_communication) continue;
            plans_of_first.push_back(first.plan);
            plans_of_first.back().context_communication = communication;
        }
        std::vector<PartitionTask> tasks;
        for (schedule::Plan& plan : plans_of_first) {
            if (!request_.limits.allows(plan)) continue;
            PartitionTask task = task_of(first);
            plan.partition = first.plan.partition;
            plan.offload = task.plan.offload;
            plan.activation_loading_horizon = task.plan.activation_loading_horizon;
            task.plan = std::move(plan);
            tasks.push_back(std::move(task));
        }
        const core::Seconds limit = step_limit(first.candidate, first.value * (1 - least_gain));
        std::vector<std::optional<RankedPlan>> changed(tasks.size());
        const std::vector<char> is_done =
            work_on(tasks.size(), [&](std::size_t t) { changed[t] = simulate_partition(tasks[t], limit); });
        result_.account.refinements += std::size_t(std::count(is_done.begin(), is_done.end(), 1));
        if (std::count(is_done.begin(), is_done.end(), 0) > 0) return false;
        std::optional<RankedPlan>* best = nullptr;
        for (std::optional<RankedPlan>& one : changed)
            if (one && (!best || is_better(*one, **best))) best = &one;
        if (!best || (*best)->value >= first.value * (1 - least_gain)) return true;
        plans.front() = std::move(**best);
    }
    return false;
}

// Plans behind the first with what that one was refined to: its gain may be theirs, and be larger. True where
// one of them comes before the first by that.
bool Search::refine_others() {
    std::vector<RankedPlan>& plans = result_.plans;
    const RankedPlan& first = plans.front();
    std::vector<PartitionTask> tasks;
    std::vector<std::size_t> refined;  // index into plans
    for (std::size_t p = 1; p < plans.size(); ++p) {
        for (schedule::Plan& plan : refined_alike(plans[p].plan, first.plan)) {
            if (!request_.limits.allows(plan)) continue;
            PartitionTask task = task_of(plans[p]);
            plan.offload = task.plan.offload;
            plan.activation_loading_horizon = task.plan.activation_loading_horizon;
            task.plan = std::move(plan);
            tasks.push_back(std::move(task));
            refined.push_back(p);
        }
    }
    const double limit = first.value * (1 - least_gain);
    std::vector<std::optional<RankedPlan>> changed(tasks.size());
    const std::vector<char> is_done = work_on(tasks.size(), [&](std::size_t t) {
        changed[t] = simulate_partition(tasks[t], step_limit(tasks[t].target, limit));
    });
    result_.account.refinements += std::size_t(std::count(is_done.begin(), is_done.end(), 1));
    std::optional<std::size_t> best;
    for (std::size_t t = 0; t < tasks.size(); ++t)
        if (changed[t] && changed[t]->value < limit && (!best || is_better(*changed[t], *changed[*best])))
            best = t;
    if (!best) return false;
    plans[refined[*best]] = std::move(*changed[*best]);
    std::stable_sort(plans.begin(), plans.end(), is_better);
    return true;
}

// Values of the first plan that the space has not, its cuts again where one of them is better, and the plans
// behind it with these values.
void Search::refine(PartitionSearch& search) {
    bool was_refined = false, is_changed = !result_.plans.empty();
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
        if (is_changed) move_cuts(search, {result_.plans.front()});
    }
}

}  // namespace planner
