// A search at work: what it has enumerated, bounded, simulated and found. Its passes are divided over the
// files beside this one; `run` (planner/search.cpp) calls them in their order.
#pragma once

#include <chrono>
#include <cmath>
#include <ctime>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "core/diagnostics_fwd.h"
#include "core/errors.h"
#include "planner/bound/bounds.h"
#include "planner/partition/partition_search.h"
#include "planner/search.h"
#include "planner/search/entries.h"
#include "planner/search/known_steps.h"
#include "schedule/pass/recompute.h"

namespace planner {

using Clock = std::chrono::steady_clock;

// Of the limit, for the first plans, and for these and all plans with the one partition that balances them.
// Then moves of cuts of the plans behind the first, and partitions; the rest is for the plans behind the
// first that come to be listed.
constexpr double share_of_probes = 0.7, share_of_waves = 0.75, share_of_moves = 0.9,
                 share_of_partitions = 0.95;
// Of the limit, for partitions of which nothing is said, where all else is done; where there is no limit; and
// where that is over, for plans which bounds say may be better with the one that balances them, and for all.
constexpr double share_of_exploring = 0.2;
constexpr core::Seconds exploring_without_limit(3), least_of_promising(0.6), least_exploring(0.4);
// Of the limit, for numbers of nodes that are not searched: there may be thousands.
constexpr double share_of_unsearched = 0.1;
// Of the limit, for a first plan, where none that was looked at fits.
constexpr double patience = 4;

// Micro-batches that a candidate is simulated with, at most: eight rounds over the pipeline. Longer steps are
// extrapolated where that is exact (sim::EvaluateOptions), shorter ones simulated whole.
int simulated_micro_batches(const schedule::Plan& plan);
// A simulation of so many, for ranking: not verified, and extrapolated.
sim::EvaluateOptions quick_options(const schedule::Plan& plan, const sim::CostConstants& constants);
bool is_run(const Target& target, const schedule::Plan& plan);
bool has_unit_without_parameters(const model::ModelGraph& graph);
// Of the units that can run again (schedule::recomputed_units), how many come before each, and all.
std::vector<int> layers_before_units(const model::ModelGraph& graph);

class Search {
public:
    Search(const model::ModelGraph& graph, const std::vector<Target>& targets, const SearchRequest& request)
        : graph_(graph), targets_(targets), request_(request) {
        for (const Target& target : targets) {
            stages_.push_back(std::make_unique<StageCollection>(graph, target.cluster.instance.device,
                                                                request.constants, &work_));
            known_candidates_.emplace_back();
        }
    }

    SearchResult run(core::Diagnostics& diagnostics);

private:
    friend class Probes;

    // Of the whole training, whose tokens are given.
    double steps() const {
        double tokens_per_step = static_cast<double>(request_.global_batch) *
                                 static_cast<double>(std::max<std::int64_t>(1, graph_.tokens_per_sample));
        return std::ceil(*request_.tokens / tokens_per_step);
    }
    double value_of(std::size_t target, core::Seconds step, core::Bytes peak) const {
        return value_of(targets_[target].cluster, step, peak);
    }
    double value_of(const cluster::Cluster& cluster, core::Seconds step, core::Bytes peak) const {
        switch (request_.objective) {
            case Objective::memory: return peak.value;
            case Objective::cost: return (cluster::price(cluster) * step).value;
            case Objective::speed:
            case Objective::time_to_train: return step.value;
        }
        throw core::InternalError("broken promise: every objective has a value");
    }
    std::optional<Rejection> constraint_violated(std::size_t target, core::Seconds step) const {
        return constraint_violated(targets_[target].cluster, step);
    }
    std::optional<Rejection> constraint_violated(const cluster::Cluster& cluster, core::Seconds step) const {
        if (!request_.tokens) return std::nullopt;
        core::Seconds total = step * steps();
        if (request_.deadline && total > *request_.deadline) return Rejection::deadline;
        if (request_.budget && cluster::price(cluster) * total > *request_.budget) return Rejection::budget;
        return std::nullopt;
    }
    // Where memory decides, one after the other; else the longest that fits, and then those that may be
    // better than everything.
    bool looks_at_every_horizon() const { return request_.objective == Objective::memory; }
    // Where time decides, longest paths exclude most of what compute orders do not, for half of a simulation.
    bool times_plans() const { return request_.uses_bounds && request_.objective != Objective::memory; }
    std::vector<int> horizons_of(const Entry& entry) const {
        if (request_.offload == schedule::Offload::none ||
            targets_[entry.target].base.offload != schedule::Offload::none)
            return {};
        return loading_horizons(graph_, targets_[entry.target].cluster.instance.device, entry.plan);
    }
    core::Seconds elapsed() const {
        return core::Seconds(std::chrono::duration<double>(Clock::now() - begin_).count());
    }

    bool is_late() const { return is_late(1); }
    // Has this share of the limit been worked?
    bool is_late(double share) const {
        return is_stopped() || (request_.time_limit && work_.spent() > *request_.time_limit * share);
    }
    bool is_stopped() const { return request_.is_stopped && request_.is_stopped(); }
    // `least` is the bound of what is left, where it is known.
    void tell_progress(std::optional<double> least);
    // work(item) for every item of 0 ... count - 1, by all threads, telling on the way that the search lives.
    // False for an item: the search was stopped before it.
    std::vector<char> work_on(std::size_t count, const std::function<void(std::size_t item)>& work);
    void count_work(const schedule::Plan& plan, const std::optional<sim::Evaluation>& evaluation) const {
        work_.add(1, per_simulation);
        work_.add(plan.layout.ranks(), per_simulated_rank);
        if (evaluation) work_.add(double(evaluation->simulated_instructions), per_instruction);
        else work_.add(2.0 * plan.stages() * plan.micro_batches, per_instruction);
    }

    // Best first: by bound, then time bound, then ordinal; and the index of the entry.
    using Key = std::tuple<double, double, std::size_t, std::size_t>;
    Key key_of(std::size_t i) const {
        return Key(entries_[i].bound, entries_[i].time_bound.value, entries_[i].ordinal, i);
    }
    static std::size_t entry_of(const Key& key) { return std::get<3>(key); }
    // What surely fits, first; of the others those that need least memory.
    using HurryKey = std::tuple<bool, bool, double, std::size_t, std::size_t>;
    // No better than the last of the plans that the search is to rank, at first one, or of no use.
    bool is_beaten(double bound) const {
        if (!request_.uses_bounds) return false;
        return (request_.better_than && bound >= *request_.better_than) ||
               (result_.plans.size() >= wanted_ && bound >= result_.plans[wanted_ - 1].value);
    }
    // Entries to look at next.
    struct Wave {
        std::vector<std::size_t> taken;    // to simulate, if nothing is known of them but that
        std::vector<std::size_t> loose;    // whose bounds can be tightened
        std::vector<std::size_t> untimed;  // of those taken
        bool is_tight = true;
    };

    // The passes of a search, in their order.
    void enumerate();
    SpaceRequest space_of(std::size_t target) const;
    using FamilyKey = std::pair<int, GradientHandling>;
    static FamilyKey family_key(const schedule::Plan& plan) {
        return {plan.passes_per_micro_batch(), GradientHandling(plan)};
    }
    Entry entry_of(const schedule::Plan& plan, std::size_t group, std::size_t ordinal) const;
    bool is_divided(const Entry& entry) const;
    bool may_be_divided(const Entry& entry) const;
    void make_members(std::size_t group);
    void bound_families();
    void bound_families_of(const std::vector<std::size_t>& groups);
    void bound_coarsely(Family& family);
    void add(Entry entry);
    void enter(std::size_t i);
    void probe_usual_plans(core::Diagnostics& diagnostics);
    void search_waves(core::Diagnostics& diagnostics, double share);
    void close_queue();
    PartitionMeans partition_means();
    void search_partitions(PartitionSearch& search, PartitionMeans means);
    bool try_changed(const std::vector<PartitionTask>& tasks,
                     std::optional<std::pair<std::size_t, RankedPlan>>& best);
    bool refine_first(bool was_refined);
    bool refine_others();
    void refine(PartitionSearch& search, bool was_refined = false);
    void refine_listed(PartitionSearch& search);
    void try_chosen_partitions(PartitionSearch& search, const std::vector<RankedPlan>& plans);
    void move_cuts(PartitionSearch& search, std::vector<RankedPlan> moved);
    void simulate_whole();
    void search_orders(core::Diagnostics& diagnostics);
    void explain_plans();
    void judge_bounds(double registered);

    struct GuardedBounds {
        GuardedBounds(const cluster::Cluster& cluster, OrderCollection& orders, StageCollection& stages,
                      sim::KnownCandidates& known)
            : bounds(cluster, orders, stages, &known) {}
        std::mutex guard;  // for what is not thread-safe
        Bounds bounds;
    };
    // Parts of bound_families and search_waves.
    bool exceeds_hosts(const Entry& entry) const;
    void bound(Entry& entry, GuardedBounds& guarded) const;
    std::optional<double> least_bound() const;
    std::vector<std::size_t> next_families() const;
    void open_families(const std::vector<std::size_t>& opened);
    void offload_where_needed(std::size_t i);
    // Parts of recomputing.cpp.
    void recompute_some(core::Diagnostics& diagnostics);
    std::vector<std::vector<std::size_t>> too_large_by_order() const;
    bool is_free_to_recompute(const Entry& entry) const;
    bool may_recompute_some(const Entry& entry) const;
    bool may_be_best(const Entry& entry, int layers) const;
    int fewest_layers(const Entry& entry) const;
    std::optional<schedule::Plan> with_parts_again(const Entry& entry) const;
    int fewest_layers_for_hosts(const Entry& entry, const sim::Evaluation& evaluation) const;
    void note_too_large(std::size_t i, Rejection rejection, const sim::Evaluation& evaluation);
    void recompute_where_needed(std::size_t i);
    void add_recomputed(std::size_t i, schedule::Plan plan);
    // Parts of stage_recomputing.cpp.
    std::vector<std::int32_t> held_layers(const std::vector<model::OperatorRange>& ranges) const;
    std::optional<schedule::Plan> with_needed_layers(const PartitionTask& task,
                                                     const schedule::Schedule& order) const;
    std::optional<schedule::Partition> cuts_for_layers(const PartitionTask& task,
                                                       const schedule::Schedule& order) const;
    double estimate_by_stage(const Entry& entry) const;
    struct BoundedPlan {
        schedule::Plan plan;
        double bound = 0;  // of the objective
    };
    std::optional<BoundedPlan> with_layers_by_stage(const Entry& entry) const;
    void recompute_by_stage(const std::vector<std::vector<std::size_t>>& orders);
    std::optional<schedule::Plan> with_more_layers(const schedule::Plan& plan,
                                                   const sim::Evaluation& evaluation) const;
    core::Seconds time_bound(const schedule::Plan& plan, std::size_t layout) const;
    std::optional<RankedPlan> simulate_with_layers(const PartitionTask& task, core::Seconds limit) const;
    // Parts of rings.cpp.
    void note_for_ring(std::size_t i, const RankedPlan& ranked);
    void try_rings(core::Diagnostics& diagnostics);
    void leave_beside_space();
    Wave next_wave() const;
    Wave late_wave();
    HurryKey hurry_key(std::size_t i) const;
    void leave_queue(std::size_t i);
    void tighten_all(const std::vector<std::size_t>& loose);
    schedule::Plan partitioned(const Entry& entry) const;
    // How soon steps of a compute order are steady.
    struct Settling {
        Settling() = default;
        explicit Settling(const sim::Evaluation& evaluation)
            : is_late(evaluation.settles_late), at(evaluation.settled_at) {}
        bool is_late = false;
        int at = 0;  // micro-batches; 0: unknown
    };
    struct TimedAlone {
        core::Seconds bound;
        Settling settling;
    };
    // `lowered`: gets the Programs of the plan, where it is timed as it is.
    TimedAlone time_alone(std::size_t target, schedule::Plan plan, bool may_offload,
                          sim::LoweredPrograms* lowered = nullptr) const;
    // quick_options(), with what the search knows: stages that are alike, short steps that are in vain.
    sim::EvaluateOptions quickest_options(std::size_t target, const schedule::Plan& plan,
                                          bool shares_links = true) const;
    void note_order(const schedule::Plan& plan, bool shares_links, const Settling& settling);
    void time_all(const std::vector<std::size_t>& untimed);
    void simulate(const std::vector<std::size_t>& taken, core::Diagnostics& diagnostics);
    bool has_by_another_name(const RankedPlan& ranked) const;
    bool pursue(core::Diagnostics& diagnostics);
    void exclude_shorter();

    // Parts of probe_usual_plans.
    double best_value() const;
    // Was none found, where any is of use?
    bool lacks_plan() const { return result_.plans.empty() && !request_.better_than; }
    std::vector<std::size_t> usual_groups();
    std::vector<std::size_t> neighbours_of(std::size_t group);
    double least_bound_of(const Group& group) const;
    void look_into(Group& group);
    std::vector<std::size_t> candidates_of(const Group& group) const;
    std::optional<std::size_t> most_promising(Group& group);
    bool needs_a_plan() const;
    bool is_put_off(std::size_t i) const;
    void look_for_shortfall();
    void keep_shortfall(Shortfall shortfall);
    Entry offloaded(const Entry& entry) const;
    bool seems_never_to_fit(const Entry& entry, const sim::Evaluation& evaluation) const;
    std::optional<Entry> after_taking(Entry& entry, std::optional<Rejection> rejection,
                                      const sim::Evaluation& evaluation);
    void choose_horizon(Entry& entry);
    void ask_shortest_first(Entry& entry);
    void tighten(Entry& entry);
    void evaluate(std::size_t index, RankedPlan& ranked, std::optional<Rejection>& rejection,
                  core::Diagnostics& diagnostics) const;
    std::optional<Rejection> simulate_plan(RankedPlan& ranked, core::Diagnostics& diagnostics,
                                           sim::LoweredPrograms* lowered = nullptr) const;
    bool breaks_down(const schedule::Plan& plan) const;
    const sim::Evaluation* known_step(std::size_t target, const schedule::Plan& plan) const;
    void note_step(const RankedPlan& ranked);
    bool is_slow_alone(std::size_t target, const schedule::Plan& plan, bool may_offload, core::Seconds limit,
                       std::optional<core::Seconds>& alone, sim::LoweredPrograms& lowered) const;
    std::optional<RankedPlan> simulate_partition(const PartitionTask& task, core::Seconds limit) const;
    core::Seconds step_limit(std::size_t target, double value) const;
    struct PartitionTasks {
        std::vector<PartitionTask> open;
        // Some of their partitions may be looked at. The one that balances them is not known to be too large.
        std::vector<PartitionTask> explored;
        std::vector<PartitionTask> numerous;  // of more partitions than are explored
        // Of either number: too large with the one that balances them; of some all ranks together are, too.
        std::vector<PartitionTask> cramped;
        std::size_t hardly_fitting = 0;
        std::size_t beaten = 0;  // by the first plan, whatever their partition
    };
    PartitionTasks partition_tasks();
    void find_fitting(PartitionSearch& search, const PartitionTasks& tasks);
    core::Seconds end_of_exploring(core::Seconds least) const;
    bool explore_partitions(PartitionTasks tasks, PartitionSearch& search,
                            const std::function<PartitionSearch(core::Seconds)>& exploring_for);
    bool has_only_partition(const RankedPlan& ranked) const;
    PartitionTask task_of(const RankedPlan& ranked) const;
    void keep_plan(RankedPlan ranked);
    void settle(RankedPlan& ranked, sim::Evaluation evaluation) const;
    void search_order(RankedPlan& ranked, core::Diagnostics& diagnostics) const;

    const model::ModelGraph& graph_;
    const std::vector<Target>& targets_;
    const SearchRequest& request_;
    std::deque<Entry> entries_;   // of the groups that were looked into, which no growth copies
    std::size_t enumerated_ = 0;  // plans of the space, and entries made beside them
    std::vector<Family> families_;
    std::vector<Group> groups_;
    std::set<std::tuple<double, double, std::size_t>> unopened_;  // families, keyed as the queue is
    std::set<Key> queue_;
    std::set<HurryKey> hurried_;  // the queue once more, from when a search is late without a plan
    bool is_hurried_ = false;
    bool probed_in_vain_ = false;       // plans that offload among others
    std::vector<std::size_t> pursued_;  // entries in the place of ones that needed too much memory
    std::set<std::pair<double, std::size_t>> for_rings_;  // by their value if dividing samples took no time
    std::vector<std::size_t> too_large_, too_large_for_hosts_;  // of the space, by their simulations
    std::vector<std::size_t> shorter_;  // entries in the queue of plans that fit with a longer horizon
    std::size_t wanted_ = 1;
    SearchResult result_;
    std::optional<double> open_;  // the least value that something not looked at may have
    void leave_open(double value) { open_ = open_ ? std::min(*open_, value) : value; }
    // Parts of least_steps.cpp.
    core::Seconds least_step(std::size_t target, const cluster::Cluster& cluster) const;
    std::optional<core::Seconds> least_step_of_any_plan(const cluster::Cluster& cluster,
                                                        bool looks_at_shapes);
    std::vector<std::optional<core::Seconds>> least_steps_;  // of the targets
    // Of orders, by their micro-batches: of a plan that was found to settle late, or, by whether links are
    // shared, how many plans settled at how many. Added to by the thread that searches alone, so that answers
    // do not depend on threads.
    using OrderOfStep = std::pair<schedule::Plan::OrderKey, int>;
    std::set<std::tuple<std::size_t, int, schedule::Recompute>> never_fit_;  // of the last with copies
    std::set<OrderOfStep> late_orders_;
    std::map<std::pair<OrderOfStep, bool>, std::map<int, int>> settled_at_;
    mutable sim::RepeatedBlocks blocks_;  // of its orders
    KnownSteps known_steps_;
    std::vector<std::pair<std::size_t, schedule::Plan>> refined_alike_;  // by their targets
    bool is_settled_ = true;                              // no move of a cut makes a ranked plan better
    std::optional<double> first_unvisited_;               // bound of the best entry that the time limit left
    std::vector<std::unique_ptr<GuardedBounds>> bounds_;  // one a layout
    mutable WorkMeter work_;
    mutable OrderCollection orders_{&work_};
    std::vector<std::unique_ptr<StageCollection>> stages_;  // one a target
    const bool has_bare_unit_ = has_unit_without_parameters(graph_);
    const std::vector<int> layers_before_ = layers_before_units(graph_);
    const schedule::RecomputeModules modules_ = schedule::modules_of(graph_, schedule::Plan());
    mutable std::deque<sim::KnownCandidates> known_candidates_;  // one a target
    std::optional<double> told_least_;
    Clock::time_point begin_ = Clock::now();
    std::clock_t cpu_begin_ = std::clock();
};

}  // namespace planner
