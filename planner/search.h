// The best plan of the whole space under the simulator's own model: memory before time, bounds before
// simulation, and an account of every candidate.
#pragma once

#include <limits>
#include <map>
#include <string>
#include <vector>

#include "cluster/topology.h"
#include "core/diagnostics.h"
#include "core/units.h"
#include "model/model_graph.h"
#include "planner/search_space.h"
#include "schedule/plan/plan.h"
#include "sim/evaluate.h"

namespace planner {

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
};

struct SearchRequest {
    Objective objective = Objective::speed;
    int global_batch = 1;
    double tokens = 0;  // of the whole training; 0: not given
    core::Seconds deadline{std::numeric_limits<double>::infinity()};
    core::Dollars budget{std::numeric_limits<double>::infinity()};
    std::size_t keep = 5;  // plans to rank
    int threads = 2;
    core::Seconds time_limit{std::numeric_limits<double>::infinity()};
    bool uses_bounds = true;  // false: simulate everything that may fit (the tests' oracle)
    int most_virtual_stages = 8;
    // Where activations may go when they do not fit: with the longest loading horizon that does, as shorter
    // ones copy more and wait longer (for the objective memory every horizon counts). none: they stay. Places
    // whose base offloads keep what it says.
    schedule::Offload offload = schedule::Offload::host;
    bool searches_orders = false;  // of the ranked plans, each with an order of its own where that is better
};

struct RankedPlan {
    std::size_t candidate = 0;    // index into the targets
    schedule::Plan plan;          // with its partition
    sim::Evaluation evaluation;   // by the very call smsim makes
    double value = 0;             // of the objective, smaller is better
    core::Seconds training_time;  // all tokens; zero when not given
    core::Dollars training_cost;
    std::string bound_by;  // "compute", "pipeline bubble", "memory", ...
    std::string why;       // a sentence with numbers against the runner-up
    std::string order;     // of a plan whose order was searched: what was found and proven
};

// Every candidate ends in exactly one of: evaluated (simulated and allowed), rejected, pruned, unvisited
// (time limit).
struct SearchAccount {
    std::size_t space = 0, evaluated = 0, pruned = 0, unvisited = 0;
    std::map<std::string, std::size_t> rejected;  // by reason
    core::Seconds seconds;
    double evaluations_per_second = 0;
    bool is_proven_optimal = false;          // of this space under this model
    double lower_bound = 0, best_value = 0;  // of the objective
    // Bounds are of registered schedules: with a searched order ranked first there is none (lower_bound is
    // then no bound), and nothing is proven.
    bool has_lower_bound = true;
};

// The nearest that a space without any plan comes to one: the candidate that needs least beyond what there
// is.
struct Shortfall {
    bool is_known = false;
    std::size_t candidate = 0;
    schedule::Plan plan;
    core::Bytes needed, available, state;  // of its tightest rank
    int pipeline_rank = 0;
};

struct SearchResult {
    std::vector<RankedPlan> plans;
    SearchAccount account;
    Shortfall shortfall;
};

// Deterministic whatever the number of threads, unless the time limit ends it. Diagnostics: prices the device
// has no figure for.
SearchResult search_plans(const model::ModelGraph& graph, const std::vector<Target>& targets,
                          const SearchRequest& request, core::Diagnostics& diagnostics);

// Is there any plan that fits the memory of this target? The first found, tightest last, those that offload
// only where no other does; nothing when there is none.
std::optional<schedule::Plan> find_fitting_plan(const model::ModelGraph& graph, const Target& target,
                                                int global_batch,
                                                schedule::Offload offload = schedule::Offload::host);

}  // namespace planner
