// One call from decision to prediction: lower, verify, price, simulate, sum up. `smsim` prints it, `smplan` ranks by it: the same function.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cluster/topology.h"
#include "core/diagnostics.h"
#include "core/units.h"
#include "core/value.h"
#include "model/model_graph.h"
#include "schedule/plan.h"
#include "schedule/program.h"
#include "schedule/timeline.h"
#include "sim/cost/constants.h"

namespace sim {

// Seconds of the critical rank's step; the parts sum to the step time. See breakdown.h for what counts as what.
struct Breakdown {
    core::Seconds compute, recompute, bubble, tensor_parallel, pipeline, data_parallel, sharding, expert, offload, optimizer, host;
};

struct ClassMemory {
    int pipeline = 0;  // class = pipeline coordinate
    std::vector<int> stages;
    core::Bytes peak, parameters, gradients, optimizer, activations, workspace, overhead;  // at the peak
};

struct Evaluation {
    core::Seconds step_time;
    double samples_per_second = 0, tokens_per_second = 0;
    core::FlopsPerSecond model_flops_per_gpu, hardware_flops_per_gpu;  // without and with recomputation
    double mfu = 0;                                                    // model FLOP/s over the peak of the compute precision
    bool fits = true;
    core::Bytes peak_memory, available_memory;
    std::string tightest;  // "pipeline rank 0: 43.1 GiB needed, 39.6 GiB available"
    std::vector<ClassMemory> memory;
    Breakdown breakdown;
    core::DollarsPerSecond rate;
    std::vector<std::string> assumptions;
    schedule::Timeline timeline;  // empty unless asked for, like the two below
    schedule::MemoryTimeline memory_timeline;
    std::shared_ptr<const schedule::Program> program;  // what the spans of the timeline refer to
};

struct EvaluateOptions {
    bool keeps_timeline = false;
    // Lower at most this many micro-batches and extrapolate (exact in steady state: makespan is eventually linear in micro-batches). 0 = all.
    int most_micro_batches = 0;
    // Only memory (no pricing, no timeline): for the planner's first filter.
    bool memory_only = false;
    CostConstants constants = {};
    // One representative for ranks that do the same; else every rank is simulated, and every group and pair has its own flows.
    bool is_folded = true;
    // Prove every lowered Program before it is simulated. A planner that has proven a schedule once may leave it out.
    bool verifies = true;
};

// The plan must have passed schedule::check_plan; a plan that does not fit memory is still evaluated (`fits` = false). An operator or precision the device has
// no figure for is a diagnostic; nothing is returned then.
std::optional<Evaluation> evaluate(const model::ModelGraph& graph, const cluster::Cluster& cluster, const schedule::Plan& plan, core::Diagnostics& diagnostics,
                                   const EvaluateOptions& options = {});

// The keys of the command-line contract (step_time_s, samples_per_s, ..., memory[], breakdown_s, usd_per_hour, usd_per_million_samples, assumptions).
core::Value to_value(const Evaluation& evaluation, const model::ModelGraph& graph, const schedule::Plan& plan);

}  // namespace sim
