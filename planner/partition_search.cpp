#include "planner/partition_search.h"

#include <algorithm>
#include <limits>
#include <set>

#include "core/parallel.h"

namespace planner {

namespace {

// Plans walked and partitions simulated before results are looked at; fixed, so that the answer does not
// depend on the threads.
constexpr std::size_t walked_at_once = 32, simulated_at_once = 16;
// Partial partitions visited for one plan: some tenths of a second.
constexpr std::size_t most_visited = 200000;
// Two cuts are moved together where there are no more stages than this.
constexpr std::size_t most_stages_in_pairs = 4;

bool is_better(const RankedPlan& a, const RankedPlan& b) {
    return std::pair(a.value, a.evaluation.step_time) < std::pair(b.value, b.evaluation.step_time);
}

std::vector<std::vector<std::int32_t>> neighbours(const std::vector<std::int32_t>& cuts, std::size_t units) {
    std::vector<std::vector<std::int32_t>> moved;
    const auto add = [&](std::vector<std::int32_t> next) {
        for (std::size_t s = 1; s < next.size(); ++s)
            if (next[s] <= next[s - 1]) return;
        if (static_cast<std::size_t>(next.back()) < units) moved.push_back(std::move(next));
    };
    for (std::size_t a = 1; a < cuts.size(); ++a)
        for (const std::int32_t step : {-1, 1}) {
            std::vector<std::int32_t> one = cuts;
            one[a] += step;
            add(one);
            if (cuts.size() > most_stages_in_pairs) continue;
            for (std::size_t b = a + 1; b < cuts.size(); ++b)
                for (const std::int32_t other : {-1, 1}) {
                    std::vector<std::int32_t> two = one;
                    two[b] += other;
                    add(std::move(two));
                }
        }
    return moved;
}

}  // namespace

StageTable& PartitionSearch::table(std::size_t layout) {
    const std::lock_guard lock(tables_guard_);
    std::unique_ptr<StageTable>& table = tables_[layout];
    if (!table) table = std::make_unique<StageTable>(graph_, *means_.layout(layout).bounds);
    return *table;
}

bool PartitionSearch::improve(RankedPlan& ranked, const PartitionTask& task) {
    std::set<std::vector<std::int32_t>> known{ranked.plan.partition.first_units};
    while (ranked.plan.stages() > 1) {
        // Simulated in the order of their bounds; those that cannot be better are left out.
        std::vector<Option> options;
        {
            const PartitionMeans::Layout layout = means_.layout(task.layout);
            const std::lock_guard lock(*layout.guard);
            PartitionSpace space(table(task.layout), task.plan);
            const core::Seconds limit = means_.limit(task.target, ranked.value);
            for (std::vector<std::int32_t>& cuts :
                 neighbours(ranked.plan.partition.first_units, graph_.units.size())) {
                if (!known.insert(cuts).second) continue;
                const core::Seconds bound = space.bound_of(cuts);
                if (bound < limit) options.push_back({0, {bound, std::move(cuts)}});
            }
        }
        std::stable_sort(options.begin(), options.end(), [](const Option& a, const Option& b) {
            return a.partition.bound < b.partition.bound;
        });
        std::optional<RankedPlan> better;
        double best = ranked.value;
        if (!simulate({task}, std::move(options), better, best)) return false;
        if (!better || !is_better(*better, ranked)) return true;
        ranked = std::move(*better);
    }
    return true;
}

bool PartitionSearch::simulate(const std::vector<PartitionTask>& tasks, std::vector<Option> options,
                               std::optional<RankedPlan>& better, double& best) {
    for (std::size_t begin = 0; begin < options.size(); begin += simulated_at_once) {
        const std::size_t end = std::min(options.size(), begin + simulated_at_once);
        if (means_.is_late()) return false;
        std::vector<std::optional<RankedPlan>> results(end - begin);
        core::for_each_in_parallel(end - begin, means_.threads, [&](std::size_t i, int) {
            const Option& option = options[begin + i];
            PartitionTask task = tasks[option.task];
            const core::Seconds limit = means_.limit(task.target, best);
            if (option.partition.bound >= limit) return;
            task.plan.partition.first_units = option.partition.first_units;
            results[i] = means_.simulate(task, limit);
        });
        for (std::optional<RankedPlan>& result : results) {
            if (!result) continue;
            ++account_.simulated;
            if (result->value >= best && (!better || !is_better(*result, *better))) continue;
            if (better && !is_better(*result, *better)) continue;
            best = std::min(best, result->value);
            better = std::move(*result);
        }
    }
    return true;
}

void PartitionSearch::leave_open(core::Seconds bound, std::size_t target) {
    ++account_.open;
    account_.open_bounds.emplace_back(target, bound);
}

// Plans whose work alone does not take too long, shortest first.
std::vector<std::pair<core::Seconds, std::size_t>> PartitionSearch::worth_a_walk(
    const std::vector<PartitionTask>& tasks, double best) {
    std::vector<std::optional<core::Seconds>> bounds(tasks.size());
    std::vector<std::pair<std::size_t, std::size_t>> runs;  // of tasks of one layout
    for (std::size_t i = 0; i < tasks.size(); ++i) {
        if (i == 0 || tasks[i].layout != tasks[i - 1].layout) runs.emplace_back(i, i);
        runs.back().second = i + 1;
    }
    core::for_each_in_parallel(runs.size(), means_.threads, [&](std::size_t r, int) {
        const PartitionMeans::Layout layout = means_.layout(tasks[runs[r].first].layout);
        const std::lock_guard lock(*layout.guard);
        StageTable& shared = table(tasks[runs[r].first].layout);
        for (std::size_t i = runs[r].first; i < runs[r].second; ++i) {
            if (i > runs[r].first && (tasks[i].plan.micro_batch != tasks[i - 1].plan.micro_batch ||
                                      tasks[i].plan.recompute != tasks[i - 1].plan.recompute))
                shared.forget();
            const core::Seconds limit = means_.limit(tasks[i].target, best);
            const PartitionSpace space(shared, tasks[i].plan);
            core::Seconds bound = space.least_of_work();
            if (bound >= limit || layout.bounds->never_fits(tasks[i].plan)) continue;
            if (!means_.is_late()) bound = space.least();
            if (bound < limit) bounds[i] = bound;
        }
        shared.forget();
    });
    std::vector<std::pair<core::Seconds, std::size_t>> order;
    for (std::size_t i = 0; i < tasks.size(); ++i) {
        if (bounds[i]) order.emplace_back(*bounds[i], i);
        else ++account_.excluded;
    }
    std::stable_sort(order.begin(), order.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    return order;
}

std::optional<RankedPlan> PartitionSearch::find_better(const std::vector<PartitionTask>& tasks, double best) {
    std::optional<RankedPlan> better;
    const auto order = worth_a_walk(tasks, best);
    bool is_late = false;
    for (std::size_t begin = 0; begin < order.size(); begin += walked_at_once) {
        const std::size_t end = std::min(order.size(), begin + walked_at_once);
        is_late = is_late || means_.is_late();
        std::vector<std::optional<std::vector<PartitionOption>>> found(end - begin);
        if (!is_late)
            core::for_each_in_parallel(end - begin, means_.threads, [&](std::size_t i, int) {
                const PartitionTask& task = tasks[order[begin + i].second];
                const PartitionMeans::Layout layout = means_.layout(task.layout);
                const std::lock_guard lock(*layout.guard);
                found[i] = PartitionSpace(table(task.layout), task.plan)
                               .below(means_.limit(task.target, best), most_visited);
            });
        for (auto& [layout, table] : tables_) table->forget();
        std::vector<Option> options;
        for (std::size_t i = begin; i < end; ++i) {
            const std::size_t task = order[i].second;
            if (!found[i - begin]) {
                leave_open(order[i].first, tasks[task].target);
                continue;
            }
            ++account_.walked;
            for (PartitionOption& option : *found[i - begin]) options.push_back({task, std::move(option)});
        }
        std::stable_sort(options.begin(), options.end(), [](const Option& a, const Option& b) {
            return a.partition.bound < b.partition.bound;
        });
        const std::vector<Option> pool = options;
        if (!is_late && !simulate(tasks, std::move(options), better, best)) {
            is_late = true;
            for (const Option& option : pool) leave_open(option.partition.bound, tasks[option.task].target);
        }
    }
    return better;
}

}  // namespace planner
