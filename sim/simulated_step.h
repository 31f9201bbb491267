// One step of a plan: lowered with so many micro-batches, priced and simulated.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "sim/cost/contention.h"
#include "sim/cost/framework/framework_memory.h"
#include "sim/cost/pricing.h"
#include "sim/engine/steady_state.h"
#include "sim/evaluate.h"

namespace sim {

struct StepTask {
    const model::ModelGraph& graph;
    const model::SegmentGraphs& graphs;  // of what passes at once
    const cluster::Cluster& cluster;
    const schedule::Plan& plan;
    const EvaluateOptions& options;
    CostModels* costs;             // null: memory only
    ContentionFinder* contention;  // null where costs are
    bool blocks_on_transfers = false;
    FrameworkMemory framework;
    core::Bytes available;  // of one rank
    std::size_t* simulated_instructions;
};

// What one simulated Program says; every number is eventually linear in the number of micro-batches.
struct StepRun {
    core::Seconds step;
    Breakdown breakdown;
    std::vector<ClassMemory> memory;
    std::optional<OutOfMemory> out_of_memory;
    core::Flops recompute_flops;  // of all ranks
    core::Bytes host_memory;      // of offloaded activations on the fullest node
    schedule::Timeline timeline;
    std::size_t critical_performer = 0;
    std::vector<core::Seconds> active_from;
    schedule::MemoryTimeline memory_timeline;
    std::shared_ptr<const schedule::Program> program;
    std::size_t ranks = 0, classes = 0, contended_links = 0;
    std::optional<SteadyState> steady;  // where it was looked for and found
    bool overflows_early = false;       // a short step: the whole one exceeds the memory too
    Breakdown block;                    // of its period
};

// Nothing where the plan's schedule cannot have so many. `block`: of micro-batches a direction, for which a
// steady state is looked for.
std::optional<StepRun> run_step(const StepTask& task, int micro_batches, core::Diagnostics& diagnostics,
                                std::optional<int> block = {});
// On ranks of a CPU the Program's buffers are all there is: the executor allocates them and nothing else.
bool is_accelerator(const StepTask& task);
// Null: what follows from prices is not kept.
LoweredPrograms* kept_runs(const StepTask& task);

}  // namespace sim
