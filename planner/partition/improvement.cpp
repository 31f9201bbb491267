// Cuts of plans that were found, moved while that makes them better.
#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "core/parallel.h"
#include "planner/partition/moves.h"
#include "planner/partition/partition_search.h"

namespace planner {

namespace {

// Of a plan of no more stages all moves are tried, also behind the first; of others, of those that take a
// unit far, the ones of the least bounds until so many in a row are in vain.
constexpr std::size_t few_stages = 8, most_in_vain = 12;

}  // namespace

bool PartitionSearch::has_few_stages(const Improvement& improvement) {
    return improvement.plan->plan.partition.first_units.size() <= few_stages;
}

// Moves from where the plan is, but for those that cannot be better. Of plans of many stages behind the first
// those with a lower bound than the plan itself.
void PartitionSearch::look_around(Improvement& improvement) const {
    improvement.options.clear();
    improvement.next = improvement.in_vain = 0;
    const PartitionMeans::Layout layout = means_.layout(improvement.task->layout);
    const std::lock_guard lock(*layout.guard);
    StageTable table(graph_, *layout.bounds);
    PartitionSpace space(table, improvement.task->plan);
    core::Seconds limit = means_.limit(improvement.task->target, improvement.plan->value);
    const Cuts& cuts = improvement.plan->plan.partition.first_units;
    if (!improvement.is_first && !has_few_stages(improvement) && means_.values_steps)
        limit = std::min(limit, space.bound_of(cuts, limit));
    for (Cuts& move : improvement.goes_far ? far_moves(cuts, graph_.units.size())
                                           : near_moves(cuts, graph_.units.size())) {
        if (improvement.known.contains(move)) continue;
        const core::Seconds bound = space.bound_of(move, limit);
        if (bound < limit) improvement.options.push_back({bound, std::move(move)});
    }
    std::stable_sort(improvement.options.begin(), improvement.options.end(),
                     [](const PartitionOption& a, const PartitionOption& b) { return a.bound < b.bound; });
}

// To the best of the moves, once all are looked at; of far ones to the first that is better. False where none
// is: that is the end.
bool PartitionSearch::advance(Improvement& improvement) const {
    const bool has_few = has_few_stages(improvement);
    const auto is_over = [&] {
        return improvement.next == improvement.options.size() ||
               (improvement.goes_far &&
                (improvement.better || (!has_few && improvement.in_vain >= most_in_vain)));
    };
    while (is_over()) {
        if (improvement.better && is_better(*improvement.better, *improvement.plan)) {
            *improvement.plan = std::move(*improvement.better);
            improvement.goes_far = false;
        } else if (!improvement.known.empty()) {
            if (improvement.goes_far || !(improvement.is_first || has_few)) return false;
            improvement.goes_far = true;
        }
        improvement.better = std::nullopt;
        improvement.known.insert(improvement.plan->plan.partition.first_units);
        look_around(improvement);
    }
    return true;
}

std::vector<char> PartitionSearch::improve(std::vector<RankedPlan>& plans,
                                           const std::vector<PartitionTask>& tasks,
                                           const std::function<bool()>& has_time) {
    std::vector<Improvement> improvements;
    for (std::size_t p = 0; p < plans.size(); ++p) {
        Improvement& improvement = improvements.emplace_back();
        improvement.plan = &plans[p];
        improvement.task = &tasks[p];
        improvement.is_first = p == 0;
        improvement.is_done = plans[p].plan.stages() == 1;
    }
    while (!means_.is_late()) {
        // Of each plan some moves, so that all threads have work.
        std::vector<std::pair<std::size_t, std::size_t>> moves;  // of a plan, and which
        const std::size_t count = has_time() ? improvements.size() : std::min<std::size_t>(1, plans.size());
        for (std::size_t p = 0; p < count; ++p) {
            Improvement& improvement = improvements[p];
            improvement.is_done = improvement.is_done || !advance(improvement);
            if (improvement.is_done) continue;
            const std::size_t end =
                std::min(improvement.options.size(), improvement.next + simulated_at_once);
            for (; improvement.next < end; ++improvement.next, ++improvement.in_vain) {
                improvement.known.insert(improvement.options[improvement.next].first_units);
                moves.emplace_back(p, improvement.next);
            }
        }
        if (moves.empty()) break;
        std::vector<std::optional<RankedPlan>> results(moves.size());
        core::for_each_in_parallel(moves.size(), means_.threads, [&](std::size_t i, int thread) {
            if (thread == 0) means_.tell_progress();
            const auto [p, move] = moves[i];
            const Improvement& improvement = improvements[p];
            const PartitionOption& option = improvement.options[move];
            PartitionTask task = *improvement.task;
            const double best = improvement.better ? improvement.better->value : improvement.plan->value;
            const core::Seconds limit = means_.limit(task.target, best);
            if (option.bound >= limit) return;
            task.plan.partition.first_units = option.first_units;
            results[i] = means_.simulate(task, limit);
        });
        for (std::size_t i = 0; i < moves.size(); ++i) {
            if (!results[i]) continue;
            ++account_.simulated;
            means_.note(*results[i]);
            std::optional<RankedPlan>& better = improvements[moves[i].first].better;
            if (!better || is_better(*results[i], *better)) better = std::move(*results[i]);
        }
    }
    // What was found of moves that not all were looked at.
    for (Improvement& improvement : improvements)
        if (improvement.better && is_better(*improvement.better, *improvement.plan))
            *improvement.plan = std::move(*improvement.better);
    std::vector<char> is_done;
    for (const Improvement& improvement : improvements) is_done.push_back(improvement.is_done);
    return is_done;
}

}  // namespace planner
