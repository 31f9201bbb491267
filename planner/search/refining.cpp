#include <algorithm>

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
        std::vector<PartitionTask> tasks;
        for (schedule::Plan& plan : refinements(first.plan, was_refined)) {
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

// Values of the first plan that the space has not, and its cuts again where one of them is better.
void Search::refine(PartitionSearch& search) {
    bool is_moved = true;
    for (bool was_refined = false; is_moved && !result_.plans.empty(); was_refined = true) {
        const schedule::Plan before = result_.plans.front().plan;
        result_.account.is_refined = refine_first(was_refined);
        if (result_.plans.front().plan == before) return;
        const schedule::Plan refined = result_.plans.front().plan;
        move_cuts(search, {result_.plans.front()});
        is_moved = !(result_.plans.front().plan == refined);
    }
}

}  // namespace planner
