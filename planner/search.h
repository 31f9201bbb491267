// The best plan of the whole space under the simulator's own model: memory before time, bounds before
// simulation, and an account of every candidate.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cluster/topology.h"
#include "core/diagnostics_fwd.h"
#include "core/units.h"
#include "model/model_fwd.h"
#include "planner/near_ties.h"
#include "planner/search_space.h"
#include "schedule/plan/plan.h"
#include "sim/evaluate.h"

namespace planner {

// How far a search is.
struct SearchProgress {
    std::size_t space = 0, looked_at = 0;  // plans; those looked at were simulated or excluded
    std::optional<double> best_value = {}, lower_bound = {};  // of the objective
    core::Seconds seconds = {};                               // since it began
};

enum class Objective {
    speed,          // least step time
    memory,         // least peak memory of a device, then step time
    cost,           // least dollars a step
    time_to_train,  // least time for all tokens, within deadline and budget
};

// A target to train: one target and one node count, with the plan everything starts from.
struct Target {
    cluster::Cluster cluster;
    schedule::Plan base;
    std::shared_ptr<const RunnablePlans> runnable = {};  // none: everything runs
};

struct SearchRequest {
    Objective objective = Objective::speed;
    int global_batch = 1;
    std::optional<double> tokens;  // of the whole training, at least 1
    // Of the whole training; they count where tokens are given.
    std::optional<core::Seconds> deadline;
    std::optional<core::Dollars> budget;
    std::size_t keep = 5;  // plans to rank
    int threads = 2;
    std::optional<core::Seconds> time_limit;  // of the search
    bool uses_bounds = true;                  // false: simulate everything that may fit (the tests' oracle)
    int most_virtual_stages = 8;
    // Where activations may go when they do not fit: with the longest loading horizon that does, as shorter
    // ones copy more and mostly wait longer, or with a shorter one where that is the best plan of all (for
    // the objective memory every horizon counts). none: they stay. Targets whose base plan offloads keep its
    // setting.
    schedule::Offload offload = schedule::Offload::host;
    sim::CostConstants constants = {};
    // Clusters that might be trained on as well, of the targets' kinds, of whose plans only a bound is known:
    // the compute of those for which there is memory. They count in what is proven.
    std::vector<cluster::Cluster> unsearched = {};
    PlanLimits limits = {};
    bool keeps_front = false;      // SearchResult::front
    bool searches_orders = false;  // of the ranked plans, each with an order of its own where that is better
    bool refines_first = false;    // by values beside those of the space (refinement.h)
    // Of a plan too large for memory also some layers of each stage run again: the fewest with which it fits.
    bool recomputes_some = false;
    // Of the plans that divide samples, those that could gain most also pass keys on in a ring.
    bool tries_rings = false;
    // Of the objective: plans of no less value are of no use, and the answer may lack them.
    std::optional<double> better_than = {};
    // Called between pieces of work, many times a second, from the thread that called the search.
    std::function<void(const SearchProgress&)> progress = {};
    // True ends the search as its time limit does, also where there is no plan yet. From any thread.
    std::function<bool()> is_stopped = {};
};

struct RankedPlan {
    std::size_t candidate = 0;                   // index into the targets
    schedule::Plan plan;                         // with its partition
    sim::Evaluation evaluation;                  // by the very call smsim makes
    double value = 0;                            // of the objective, smaller is better
    std::optional<core::Seconds> training_time;  // of all tokens, where they are given
    std::optional<core::Dollars> training_cost;
    std::string bound_by;              // "compute", "pipeline bubble", "memory", ...
    std::string why;                   // a sentence with numbers against the runner-up
    std::optional<std::string> order;  // of a plan whose order was searched: what was found and proven
};

bool is_better(const RankedPlan& a, const RankedPlan& b);

// Why a candidate is no plan; in the order of the reasons' words, in which accounts list them.
enum class Rejection {
    activations,     // bounds of the activations and the state exceed the device's memory
    not_run,         // what is to run it does not take its partition, or its offload
    stages,          // the model has fewer units than the plan has stages
    deadline,        // the whole training takes longer
    host_memory,     // what is offloaded exceeds the host's memory
    budget,          // the whole training costs more
    state,           // parameters, gradients and optimizer state alone exceed the device's memory
    simulated_peak,  // the simulated peak exceeds the device's memory
    no_figure,       // the device has no price for it
    unneeded,        // its activations would be offloaded, though they fit
};
std::string_view reason_of(Rejection rejection);

// Of the partitions beside the one that every plan was looked at with first.
struct PartitionAccount {
    std::size_t excluded = 0;   // plans none of whose partitions can be better
    std::size_t walked = 0;     // plans of whose partitions all were bounded
    std::size_t simulated = 0;  // partitions
    std::size_t open = 0;       // plans and partitions that the time limit, or their number, left
    std::size_t undecided = 0;  // where no plan was found: plans of which another partition may fit
    std::vector<std::pair<std::size_t, core::Seconds>> open_bounds;  // target, bound of the step
};

// Every candidate ends in exactly one of: evaluated (simulated and allowed), rejected, pruned, unvisited
// (time limit).
struct SearchAccount {
    std::size_t space = 0, evaluated = 0, pruned = 0, unvisited = 0;
    std::map<Rejection, std::size_t> rejected;
    core::Seconds seconds;
    core::Seconds cpu_seconds;  // of the process, all threads
    core::Seconds work;         // counted, as the time limit is
    double evaluations_per_second = 0;
    bool is_proven_optimal = false;  // of this space under this model
    // Of the objective. Bounds are of registered schedules: without a plan, and with a searched order ranked
    // first, there is none, and nothing is proven.
    std::optional<double> lower_bound, best_value;
    // Were all partitions of plans looked at that have one stage a rank, or few partitions? Else each plan
    // has the one that balances its stages.
    bool covers_partitions = false;
    PartitionAccount partitions;
    bool recomputes_some = false;       // plans too large for memory also ran some of their layers again
    std::size_t partly_recomputed = 0;  // such plans, simulated and allowed, beside the space
    bool tries_rings = false;           // plans that divide samples also passed keys on in a ring
    std::size_t in_rings = 0;           // such plans, simulated and allowed, beside the space
    std::size_t refinements = 0;        // of first plans, looked at
    bool is_refined = false;            // none of them is better than the first plan by a ten-thousandth
    std::size_t bounded_targets = 0;    // of the unsearched clusters those that bounds do not exclude
};

// The candidate that exceeds its device's memory by the least.
struct Shortfall {
    std::size_t candidate = 0;  // index into the targets
    schedule::Plan plan;
    core::Bytes needed, available, state;  // of its tightest rank
    int pipeline_rank = 0;
};

struct SearchResult {
    std::vector<RankedPlan> plans;
    SearchAccount account;
    std::optional<Shortfall> shortfall;
    // Of all plans simulated those than which none is better in step time, cost or peak memory and no worse
    // in the others (pareto.h); without `why` and `bound_by`.
    std::vector<RankedPlan> front = {};
    NearTies near_ties = {};
};

// Deterministic whatever the number of threads, unless the time limit ends it. Diagnostics: prices the device
// has no figure for.
SearchResult search_plans(const model::ModelGraph& graph, const std::vector<Target>& targets,
                          const SearchRequest& request, core::Diagnostics& diagnostics);

// Of a plan that is a near tie: a search has the parts of a step of the plans that it returns in `plans` and
// `front`, and asks the other simulations for times and memory alone.
sim::Evaluation with_breakdown(const RankedPlan& plan, const model::ModelGraph& graph,
                               const std::vector<Target>& targets, const sim::CostConstants& constants);

// Is there any plan that fits the memory of this target? The first found, tightest last, those that offload
// only where no other does; nothing when there is none.
std::optional<schedule::Plan> find_fitting_plan(const model::ModelGraph& graph, const Target& target,
                                                int global_batch,
                                                schedule::Offload offload = schedule::Offload::host,
                                                const PlanLimits& limits = {});

}  // namespace planner
