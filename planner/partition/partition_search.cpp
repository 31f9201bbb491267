#include "planner/partition/partition_search.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "core/parallel.h"

namespace planner {

namespace {

// Plans walked before results are looked at, or the limit is; by what was counted, so that the answer does
// not depend on the threads.
constexpr std::size_t looked_at_at_once = 1024, looked_at_at_first = 128, walked_at_once = 64;
// A walk of a plan of many stages takes as long as thousands of short ones: of those fewer at once, so that
// a limit is not overrun.
constexpr std::size_t fewest_walked_at_once = 4, walked_at_first = 16;
constexpr core::Seconds long_wave(0.5);  // of work
// Partial partitions visited for one plan: less than a tenth of a second.
constexpr std::size_t most_visited = 40'000;
constexpr int most_tries_of_a_walk = 5;
// Partitions of a plan that are simulated before there is time left: of a plan with more than that below the
// best it is mostly what bounds do not see that makes it slower.
constexpr std::size_t most_found_at_first = 256;

// Of the next wave, after one that took so long: half as many, or twice.
std::size_t next_at_once(std::size_t at_once, core::Seconds spent, std::size_t fewest, std::size_t most) {
    return spent > long_wave ? std::max(at_once / 2, fewest) : std::min(at_once * 2, most);
}

// The most likely of every kind, then the second of every kind, and so on.
std::vector<PartitionTask> by_turns(std::vector<std::vector<PartitionTask>> kinds) {
    std::size_t most = 0;
    for (std::vector<PartitionTask>& tasks : kinds) {
        std::stable_sort(tasks.begin(), tasks.end(),
                         [](const PartitionTask& a, const PartitionTask& b) { return a.likely < b.likely; });
        most = std::max(most, tasks.size());
    }
    std::vector<PartitionTask> all;
    for (std::size_t i = 0; i < most; ++i)
        for (std::vector<PartitionTask>& tasks : kinds)
            if (i < tasks.size()) all.push_back(std::move(tasks[i]));
    return all;
}

}  // namespace

bool PartitionSearch::simulate(const std::vector<PartitionTask>& tasks, std::vector<Option> options,
                               std::optional<RankedPlan>& better, double& best) {
    for (std::size_t begin = 0; begin < options.size(); begin += simulated_at_once) {
        const std::size_t end = std::min(options.size(), begin + simulated_at_once);
        if (means_.is_late()) return false;
        std::vector<std::optional<RankedPlan>> results(end - begin);
        core::for_each_in_parallel(end - begin, means_.threads, [&](std::size_t i, int thread) {
            if (thread == 0) means_.tell_progress();
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
            means_.note(*result);
            if (result->value >= best && (!better || !is_better(*result, *better))) continue;
            if (better && !is_better(*result, *better)) continue;
            best = std::min(best, result->value);
            better = std::move(*result);
        }
    }
    return true;
}

void PartitionSearch::sort_by_bound(std::vector<Option>& options) {
    std::stable_sort(options.begin(), options.end(),
                     [](const Option& a, const Option& b) { return a.partition.bound < b.partition.bound; });
}

void PartitionSearch::leave_open(core::Seconds bound, std::size_t target) {
    ++account_.open;
    account_.open_bounds.emplace_back(target, bound);
}

// What stays open of a task that is not looked at. No matter how far it lies above what stays open anyway.
std::optional<core::Seconds> PartitionSearch::bound_unless_beaten(const PartitionTask& task,
                                                                  double best) const {
    const core::Seconds limit = means_.limit(task.target, best);
    if (task.work_bound >= limit) return std::nullopt;
    if (means_.is_stopped() || task.is_whole_family) return task.work_bound;
    if (means_.least_open && task.work_bound >= means_.limit(task.target, *means_.least_open))
        return task.work_bound;
    const PartitionMeans::Layout layout = means_.layout(task.layout);
    const std::lock_guard lock(*layout.guard);
    const core::Seconds bound = std::max(task.work_bound, layout.bounds->time_of_any_partition(task.plan));
    return bound < limit ? std::optional(bound) : std::nullopt;
}

void PartitionSearch::count_work(const PartitionSpace& space) const {
    means_.work->add(1, per_bounded_plan);
    means_.work->add(space.divisions(), per_division);
    means_.work->add(space.replayed_passes(), per_replayed_pass);
    means_.work->add(space.memory_bounds(), per_memory_bound);
    means_.work->add(space.held_passes(), per_held_pass);
}

// Nothing where no partition of the task can be better.
std::optional<PartitionSearch::OpenTask> PartitionSearch::least_of(StageTable& table,
                                                                   const PartitionTask& task,
                                                                   double best) const {
    const core::Seconds limit = means_.limit(task.target, best);
    means_.work->add(1, per_opened_plan);
    if (task.work_bound >= limit || table.bounds().time_of_any_partition(task.plan) >= limit ||
        table.bounds().never_fits(task.plan))
        return std::nullopt;
    PartitionSpace space(table, task.plan);
    const core::Seconds least =
        std::max({task.work_bound, space.least(limit), table.bounds().time_of_any_partition(task.plan)});
    count_work(space);
    if (least >= limit) return std::nullopt;
    return OpenTask{.least = least, .division = space.division_of_least()};
}

// Where there are too many partitions below the limit, those below as much of it as a few halvings find.
PartitionSearch::Walk PartitionSearch::walk(StageTable& table, const PartitionTask& task, core::Seconds least,
                                            double best, std::size_t most_found) const {
    core::Seconds limit = means_.limit(task.target, best), looked_at = limit;
    Walk walk{{}, least, false};
    for (int tries = 0; tries < most_tries_of_a_walk && !means_.is_stopped(); ++tries) {
        PartitionSpace space(table, task.plan);
        std::optional<std::vector<PartitionOption>> options =
            space.below(looked_at, most_visited, most_found);
        count_work(space);
        if (options) {
            walk = {std::move(*options), looked_at, true};
            if (looked_at == limit) break;
        } else {
            limit = looked_at;
        }
        looked_at = (walk.complete_below + limit) / 2;
    }
    return walk;
}

void PartitionSearch::for_each_of(const Tasks& tasks, const std::vector<std::size_t>& wave,
                                  const std::function<void(StageTable&, std::size_t)>& look) const {
    std::vector<std::pair<std::size_t, std::size_t>> runs;  // of one family
    for (std::size_t i = 0; i < wave.size(); ++i) {
        if (i == 0 || tasks[wave[i]].family != tasks[wave[i - 1]].family) runs.emplace_back(i, i);
        runs.back().second = i + 1;
    }
    // Those of one layout would wait for each other.
    std::map<std::size_t, std::vector<std::size_t>> by_layout;
    for (std::size_t r = 0; r < runs.size(); ++r) by_layout[tasks[wave[runs[r].first]].layout].push_back(r);
    const std::vector<std::pair<std::size_t, std::vector<std::size_t>>> pieces(by_layout.begin(),
                                                                               by_layout.end());
    core::for_each_in_parallel(pieces.size(), means_.threads, [&](std::size_t piece, int thread) {
        const PartitionMeans::Layout layout = means_.layout(pieces[piece].first);
        const std::lock_guard lock(*layout.guard);
        for (const std::size_t r : pieces[piece].second) {
            if (thread == 0) means_.tell_progress();
            StageTable table(graph_, *layout.bounds);
            for (std::size_t i = runs[r].first; i < runs[r].second; ++i) look(table, i);
            means_.work->add(table.entries(), per_table_entry);
        }
    });
}

// Every task gets the least bound of its partitions before any is walked: where time is up, what stays open
// is bounded by that.
std::vector<PartitionSearch::OpenTask> PartitionSearch::find_open(const Tasks& tasks, double best) {
    std::vector<std::size_t> order(tasks.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return std::pair(tasks[a].family_bound, tasks[a].family) <
               std::pair(tasks[b].family_bound, tasks[b].family);
    });
    std::vector<OpenTask> open;
    std::size_t at_once = looked_at_at_first;
    for (std::size_t begin = 0, end = 0; begin < order.size(); begin = end) {
        end = std::min(order.size(), begin + at_once);
        const std::vector<std::size_t> wave(order.begin() + std::ptrdiff_t(begin),
                                            order.begin() + std::ptrdiff_t(end));
        const core::Seconds spent = means_.work->spent();
        std::vector<std::optional<OpenTask>> found(wave.size());
        const auto leave = [&](std::size_t i) {
            if (const auto bound = bound_unless_beaten(tasks[wave[i]], best)) found[i] = {.least = *bound};
        };
        if (means_.is_late())
            for (std::size_t i = 0; i < wave.size(); ++i) leave(i);
        else
            for_each_of(tasks, wave, [&](StageTable& table, std::size_t i) {
                if (means_.is_stopped()) leave(i);
                else found[i] = least_of(table, tasks[wave[i]], best);
            });
        at_once = next_at_once(at_once, means_.work->spent() - spent, looked_at_at_first, looked_at_at_once);
        for (std::size_t i = 0; i < wave.size(); ++i) {
            if (!found[i]) {
                ++account_.excluded;
                continue;
            }
            found[i]->task = wave[i];
            open.push_back(std::move(*found[i]));
        }
    }
    // Families by the least bound of their tasks, and those of one family together: they share a table.
    std::map<std::size_t, core::Seconds> of_family;
    for (const OpenTask& task : open) {
        const auto [entry, is_new] = of_family.try_emplace(tasks[task.task].family, task.least);
        entry->second = std::min(entry->second, task.least);
    }
    std::stable_sort(open.begin(), open.end(), [&](const OpenTask& a, const OpenTask& b) {
        const std::size_t family = tasks[a.task].family, other = tasks[b.task].family;
        return std::tuple(of_family[family], family, a.least) < std::tuple(of_family[other], other, b.least);
    });
    return open;
}

std::optional<RankedPlan> PartitionSearch::find_better(const std::vector<PartitionTask>& tasks, double best) {
    std::optional<RankedPlan> better;
    left_ = walk_all(tasks, find_open(tasks, best), most_found_at_first, better, best);
    return better;
}

std::optional<RankedPlan> PartitionSearch::find_rest(const std::vector<PartitionTask>& tasks, double best) {
    std::optional<RankedPlan> better;
    for (const OpenTask& task : walk_all(tasks, left_, std::numeric_limits<std::size_t>::max(), better, best))
        leave_open(task.least, tasks[task.task].target);
    return better;
}

std::optional<RankedPlan> PartitionSearch::find_likely(std::vector<std::vector<PartitionTask>> kinds,
                                                       double best) {
    std::optional<RankedPlan> better;
    const Tasks tasks = by_turns(std::move(kinds));
    std::size_t at_once = fewest_walked_at_once;
    for (std::size_t begin = 0, end = 0; begin < tasks.size(); begin = end) {
        if (means_.is_late()) {
            account_.undecided += tasks.size() - begin;
            break;
        }
        end = std::min(tasks.size(), begin + at_once);
        const core::Seconds spent = means_.work->spent();
        const Tasks likely(tasks.begin() + std::ptrdiff_t(begin), tasks.begin() + std::ptrdiff_t(end));
        const std::vector<OpenTask> open = find_open(likely, best);
        account_.undecided += open.size();
        std::vector<std::size_t> wave;
        for (const OpenTask& task : open) wave.push_back(task.task);
        std::vector<std::vector<PartitionOption>> found(wave.size());
        for_each_of(likely, wave, [&](StageTable& table, std::size_t i) {
            PartitionSpace space(table, likely[wave[i]].plan);
            found[i] = space.descend(means_.limit(likely[wave[i]].target, best), open[i].division,
                                     likely[wave[i]].room);
            count_work(space);
        });
        at_once = next_at_once(at_once, means_.work->spent() - spent, fewest_walked_at_once, walked_at_once);
        std::vector<Option> options;
        for (std::size_t i = 0; i < wave.size(); ++i)
            for (PartitionOption& option : found[i]) options.push_back({wave[i], std::move(option)});
        sort_by_bound(options);
        simulate(likely, std::move(options), better, best);
    }
    return better;
}

std::vector<PartitionSearch::OpenTask> PartitionSearch::walk_all(const Tasks& tasks,
                                                                 const std::vector<OpenTask>& open,
                                                                 std::size_t most_found,
                                                                 std::optional<RankedPlan>& better,
                                                                 double& best) {
    std::vector<OpenTask> left;
    bool is_late = false;
    std::size_t at_once = walked_at_first;
    for (std::size_t begin = 0, end = 0; begin < open.size(); begin = end) {
        is_late = is_late || means_.is_late();
        end = std::min(open.size(), begin + at_once);
        const core::Seconds spent = means_.work->spent();
        std::vector<OpenTask> looked_at;
        for (std::size_t i = begin; i < end; ++i) {
            if (open[i].least >= means_.limit(tasks[open[i].task].target, best)) ++account_.excluded;
            else (is_late ? left : looked_at).push_back(open[i]);
        }
        std::vector<std::size_t> wave;
        for (const OpenTask& task : looked_at) wave.push_back(task.task);
        std::vector<Walk> found(wave.size());
        for_each_of(tasks, wave, [&](StageTable& table, std::size_t i) {
            found[i] = walk(table, tasks[wave[i]], looked_at[i].least, best, most_found);
        });
        at_once = next_at_once(at_once, means_.work->spent() - spent, fewest_walked_at_once, walked_at_once);
        std::vector<Option> options;
        for (std::size_t i = 0; i < wave.size(); ++i) {
            if (found[i].complete_below < means_.limit(tasks[wave[i]].target, best))
                left.push_back({.task = wave[i],
                                .least = found[i].complete_below,
                                .is_simulated_below = looked_at[i].is_simulated_below || found[i].is_done});
            else ++account_.walked;
            for (PartitionOption& option : found[i].options)
                if (!looked_at[i].is_simulated_below || option.bound >= looked_at[i].least)
                    options.push_back({wave[i], std::move(option)});
        }
        sort_by_bound(options);
        const std::vector<Option> pool = options;
        if (!simulate(tasks, std::move(options), better, best)) {
            is_late = true;
            for (const Option& option : pool) leave_open(option.partition.bound, tasks[option.task].target);
        }
    }
    return left;
}

}  // namespace planner
