// Why a plan is not the best one: what each field in which it differs is worth, and whether the difference is
// more than the error of the predictions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cluster/topology.h"
#include "core/diagnostics_fwd.h"
#include "core/units.h"
#include "core/value.h"
#include "model/model_fwd.h"
#include "schedule/plan/plan.h"
#include "sim/evaluate.h"
#include "sim/report/comparison.h"
#include "sim/uncertainty/posterior.h"

namespace planner {

enum class Verdict {
    does_not_fit,  // into a device's memory, or its host's
    slower,        // by more than the error of the difference
    equal,         // within it
    faster,        // than what is said to be best, by more than it
};
std::string_view name_of(Verdict verdict);

// One field changed towards the best plan, or several that make a legal plan only together. The
// number of micro-batches follows from the batch, the data-parallel degree from the devices where both plans
// use as many, the partition from the number of stages.
struct PlanChange {
    std::vector<sim::Difference> fields;  // keys as in [plan]
    core::Seconds share;                  // of the whole difference: Shapley's value, less than zero: faster
    // Of the plan with this change alone; nothing where that is not legal, which only shares of sampled
    // orders can have.
    std::optional<core::Seconds> step_time;
    core::Bytes peak_memory;
    bool fits = true;
};

struct WhyNot {
    sim::Evaluation plan, best;
    Verdict verdict = Verdict::equal;
    double difference_pct = 0;  // of the plan's step over the best one's
    // Half of the 80 % interval of the difference, in percent: both plans on one installation, so that what
    // slows both alike does not count.
    double error_pct = 0;
    std::vector<PlanChange> changes;      // the largest share of a faster step first
    bool is_exact = true;                 // false: shares are means over sampled orders
    std::optional<std::size_t> decisive;  // the change that alone makes the step shortest, if any does; of
                                          // a plan that does not fit the first of those that make it fit
};

// Both plans must have passed schedule::check_plan. Nothing, with diagnostics, where one has no prediction.
std::optional<WhyNot> why_not(const model::ModelGraph& graph, const cluster::Cluster& cluster,
                              const schedule::Plan& plan, const schedule::Plan& best,
                              const sim::Posterior& posterior, core::Diagnostics& diagnostics);

// Where memory is missing: the devices of which pipeline rank, by how much, and what they hold at the peak,
// the largest first. Or a node's host.
struct MissingMemory {
    std::optional<int> pipeline_rank;  // nothing: the host
    core::Bytes needed, available;
    std::vector<std::pair<std::string, core::Bytes>> held;  // "activations"; of the device
};
// Nothing when it fits.
std::optional<MissingMemory> missing_memory(const sim::Evaluation& evaluation);

}  // namespace planner
