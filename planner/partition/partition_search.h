// The second half of a plan search: the search before it looked at one partition of every plan; this one
// looks at all of them, by bounds, and moves the cuts of the plans that were found.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "model/model_fwd.h"
#include "planner/bound/bounds.h"
#include "planner/partition/partition_space.h"
#include "planner/search.h"
#include "schedule/plan/plan.h"

namespace planner {

// A plan without partition and offload, of one target, with the bounds of its layout.
struct PartitionTask {
    std::size_t target = 0, layout = 0;
    schedule::Plan plan;
    std::size_t family = 0;                  // tasks of one family share what their stages cost
    core::Seconds family_bound, work_bound;  // of a step of the family, and of this plan with any partition
    bool is_whole_family = false;  // the plan stands for all of its family: nothing is known but that
    double likely = 0;             // the least value of the partition that balances the plan's stages
    core::Bytes room{};            // for what bounds say that it needs on a device
};

// What the search that surrounds it knows. All are called by several threads at once.
struct PartitionMeans {
    // A plan with its partition, simulated; nothing where it does not fit, a constraint is violated, or its
    // copies of offloaded activations alone take longer than the limit.
    std::function<std::optional<RankedPlan>(const PartitionTask&, core::Seconds limit)> simulate;
    // Told every plan that simulate() gave: by one thread, in an order that does not depend on threads.
    std::function<void(const RankedPlan&)> note;
    // Steps of this length or longer are no better than the value, or violate a constraint.
    std::function<core::Seconds(std::size_t target, double value)> limit;
    std::function<bool()> is_late, is_stopped;  // a search that was stopped is late too
    std::function<void()> tell_progress;        // by the thread that searches alone
    std::optional<double> least_open;           // value that plans which the other search left may have
    WorkMeter* work = nullptr;
    struct Layout {
        std::mutex* guard;  // of the bounds
        Bounds* bounds;
    };
    std::function<Layout(std::size_t)> layout;
    int threads = 1;
    bool values_steps = true;  // is a plan better whose step is shorter?
};

class PartitionSearch {
public:
    PartitionSearch(const model::ModelGraph& graph, PartitionMeans means)
        : graph_(graph), means_(std::move(means)) {}

    // Moves cuts of the plans, each one or two neighbours at a time, until no such move makes its value
    // better; of each: false when time was up before. Of the first plan, and of plans of few stages, units go
    // to stages further away too, as far as their bounds promise something. `tasks` are of the plans. The
    // plans behind the first take turns with it as long as `has_time` says so; those of many stages try the
    // moves alone that lower their bound.
    std::vector<char> improve(std::vector<RankedPlan>& plans, const std::vector<PartitionTask>& tasks,
                              const std::function<bool()>& has_time);
    // Simulates every partition of the tasks whose bound is below the best value, which is then `best`'s or
    // that of the answer; where a task has many of them, some. The answer is the best, where it is better.
    std::optional<RankedPlan> find_better(const std::vector<PartitionTask>& tasks, double best);
    // After it, with the same tasks: the others, or what bounds them where there are too many.
    std::optional<RankedPlan> find_rest(const std::vector<PartitionTask>& tasks, double best);
    // Of each task, none of which is looked at in full, one partition whose bound is low
    // (PartitionSpace::descend) and for which there is room, the likely tasks of each kind before the others
    // while there is time. Those that may be better are simulated, in the order of their bounds.
    std::optional<RankedPlan> find_likely(std::vector<std::vector<PartitionTask>> kinds, double best);
    // Plans that are beaten without a look at them.
    void exclude(std::size_t plans) { account_.excluded += plans; }
    // Plans too large with one partition, that are looked at with no other.
    void leave_undecided(std::size_t plans) { account_.undecided += plans; }
    // Those that were simulated elsewhere.
    void count_simulated(std::size_t partitions) { account_.simulated += partitions; }
    const PartitionAccount& account() const { return account_; }

private:
    // Partitions simulated before results are looked at; fixed, so that the answer does not depend on the
    // threads.
    static constexpr std::size_t simulated_at_once = 4;
    struct Option {
        std::size_t task;
        PartitionOption partition;
    };
    // A task of which some partition may be better: the least bound of all its partitions, or of those whose
    // own bounds are no less, where the others were simulated.
    struct OpenTask {
        std::size_t task = 0;
        core::Seconds least;
        bool is_simulated_below = false;
        std::vector<std::int32_t> division{};  // that the bound is of, where it is known
    };
    // A plan whose cuts are moved.
    struct Improvement {
        RankedPlan* plan = nullptr;
        const PartitionTask* task = nullptr;
        bool is_first = false;                      // of the ranking: it goes far too
        bool goes_far = false;                      // no near move is better
        std::set<std::vector<std::int32_t>> known;  // where it was
        std::vector<PartitionOption> options;       // moves, in the order of their bounds
        std::size_t next = 0, in_vain = 0;          // of the options; those tried
        std::optional<RankedPlan> better;           // the best of those simulated
        bool is_done = false;
    };
    static bool has_few_stages(const Improvement& improvement);
    void look_around(Improvement& improvement) const;
    bool advance(Improvement& improvement) const;
    using Tasks = std::vector<PartitionTask>;
    std::optional<core::Seconds> bound_unless_beaten(const PartitionTask& task, double best) const;
    void count_work(const PartitionSpace& space) const;
    std::optional<OpenTask> least_of(StageTable& table, const PartitionTask& task, double best) const;
    std::vector<OpenTask> find_open(const Tasks& tasks, double best);
    // All partitions whose bound is below this, where there are not too many.
    struct Walk {
        std::vector<PartitionOption> options;
        core::Seconds complete_below;
        bool is_done = false;
    };
    Walk walk(StageTable& table, const PartitionTask& task, core::Seconds least, double best,
              std::size_t most_found) const;
    // Simulates the partitions that may be better, of each task no more than `most_found` or those below a
    // lower bound; what stays open.
    std::vector<OpenTask> walk_all(const Tasks& tasks, const std::vector<OpenTask>& open,
                                   std::size_t most_found, std::optional<RankedPlan>& better, double& best);
    // Calls `look(table, i)` for the tasks of the wave; those of one family share a table and a thread.
    void for_each_of(const Tasks& tasks, const std::vector<std::size_t>& wave,
                     const std::function<void(StageTable&, std::size_t)>& look) const;
    static void sort_by_bound(std::vector<Option>& options);
    void leave_open(core::Seconds bound, std::size_t target);
    // Of the options in order of their bounds those that may be better than `best`; false when time is up.
    bool simulate(const std::vector<PartitionTask>& tasks, std::vector<Option> options,
                  std::optional<RankedPlan>& better, double& best);

    const model::ModelGraph& graph_;
    std::vector<OpenTask> left_;  // by find_better
    PartitionMeans means_;
    PartitionAccount account_;
};

}  // namespace planner
