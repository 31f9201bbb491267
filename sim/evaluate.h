// One call from decision to prediction: lower, verify, price, simulate, sum up. `smsim` prints it, `smplan`
// ranks by it: the same function.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cluster/topology.h"
#include "core/diagnostics_fwd.h"
#include "core/units.h"
#include "core/value.h"
#include "model/model_fwd.h"
#include "schedule/plan/plan.h"
#include "schedule/program/program.h"
#include "schedule/program/timeline.h"
#include "sim/cost/constants.h"
#include "sim/cost/framework/framework_memory.h"
#include "sim/engine/memory_sweep.h"
#include "sim/engine/repeated_blocks.h"

namespace sim {

class KnownCandidates;

// Seconds of the critical rank's step; the parts sum to the step time. See breakdown.h for what counts as
// what.
struct Breakdown {
    core::Seconds compute, recompute, bubble, tensor_parallel, pipeline, data_parallel, sharding, expert,
        offload, optimizer, host;
};

struct ClassMemory {
    int pipeline = 0;  // class = pipeline coordinate
    std::vector<int> stages;
    core::Bytes peak, parameters, gradients, optimizer, activations, workspace, overhead;  // at the peak
    // What the framework's allocator has taken from the device by then: blocks it freed are kept for the same
    // kind of use. Together with what lies outside the allocator, but never more than the device has (cached
    // blocks are given back before an allocation fails).
    core::Bytes reserved, process;
};

// Where a plan that does not fit fails: the first instruction, in time, that asks for more than its device
// has left.
struct OutOfMemory {
    int pipeline = 0, rank = 0;  // coordinate; the lowest such rank
    std::size_t performer = 0;   // of the timeline
    std::optional<std::uint32_t>
        instruction;   // in the class's list; nothing: state alone is too much before the step begins
    std::string what;  // the instruction in words
    std::string stream;
    // Of the instruction, where it has one: virtual stage, micro-batch, first and last operator of its range.
    std::optional<int> stage, micro_batch;
    std::optional<std::string> operators;
    core::Seconds time;
    core::Bytes asked, needed, available;  // by this allocation; in all with it; on the device
    MemoryByKind held{};  // with it, by kind; what lies outside the allocator counts as overhead
};

struct Evaluation {
    core::Seconds step_time;
    double samples_per_second = 0, tokens_per_second = 0;
    core::FlopsPerSecond model_flops_per_gpu, hardware_flops_per_gpu;  // without and with recomputation
    double mfu = 0;  // model FLOP/s over the peak of the compute precision
    bool fits = true;
    core::Bytes peak_memory, available_memory;
    // Activations offloaded to hosts: what those of the fullest node take there, and its memory where the
    // profile states it. A processor's host is itself: what its ranks hold comes on top.
    core::Bytes host_memory;
    std::optional<core::Bytes> available_host_memory;
    std::string tightest;  // "pipeline rank 0: 43.1 GiB needed, 39.6 GiB available"
    std::vector<ClassMemory> memory;
    std::optional<OutOfMemory> out_of_memory;  // when it does not fit
    Breakdown breakdown;
    core::DollarsPerSecond rate;
    std::size_t simulated_instructions = 0;  // of all classes and all runs that this took
    bool is_extrapolated = false;            // the step follows from shorter ones
    int settled_at = 0;                      // ... the longest of which had so many micro-batches
    bool settles_late = false;  // ... it did not: its schedule repeats itself, but no short step was steady
    // It does not fit, as a short step showed: times are of that, and peaks are no more than the whole one's.
    bool overflows_early = false;
    std::vector<std::string> assumptions;
    schedule::Timeline timeline;  // empty unless asked for, like all below
    schedule::MemoryTimeline memory_timeline;
    std::shared_ptr<const schedule::Program> program;  // what the spans of the timeline refer to
    std::size_t critical_performer = 0;                // of the timeline: the one the breakdown is of
    std::vector<core::Seconds>
        active_from;  // of its spans, in their order: when data began to move (Simulation::active_from)
};

// Programs of one plan by their number of micro-batches, kept where the plan is evaluated again and again
// with other constants, so that only what these touch is done again. A plan whose partition follows from its
// costs takes what fits its partition.
class Simulator;
struct SimulatedProgram;
struct LoweredPrograms {
    struct Entry {
        int micro_batches = 0;
        schedule::Partition partition;
        bool is_joined = false;  // LowerOptions::joins_passes
        std::shared_ptr<const schedule::Program> program;
        // By the facts that it was found with.
        std::optional<FrameworkMemory> framework;
        std::vector<ExtraMemory> extra;
        // What was simulated first: constants that leave its prices as they are leave all else.
        std::shared_ptr<const SimulatedProgram> simulated;
        std::shared_ptr<Simulator> simulator;  // of the Program
    };
    std::vector<Entry> entries;
    RepeatedBlocks blocks;
    // Micro-batches of a step that was in its steady state once.
    std::optional<int> steady_at;
    // Only differences between constants are asked for: where the schedule settles late, a line through the
    // last two short steps that were tried is as good for all of them. Their micro-batches, once it was.
    bool takes_a_line = false;
    std::optional<std::pair<int, int>> line_through;
    // Micro-batches of the longest of three steps that were on a straight line once: two of them say where it
    // goes.
    std::optional<int> straight_at;
    // False: evaluations differ in more than constants. Programs are kept and nothing that followed from
    // prices.
    bool keeps_runs = true;
};

struct EvaluateOptions {
    bool keeps_timeline = false;
    // Lower at most this many micro-batches and extrapolate (exact in steady state: makespan is eventually
    // linear in micro-batches). Nothing: all are lowered.
    std::optional<int> most_micro_batches = {};
    // Of those, short steps of fewer are not tried: where it is known that they are not steady. A longer one
    // is as exact.
    int least_micro_batches = 0;
    // Where a short step exceeds the memory before it differs from the whole one, that is not simulated.
    bool stops_at_overflow = false;
    // Only memory (no pricing, no timeline): for the planner's first filter.
    bool memory_only = false;
    CostConstants constants = {};
    // One representative for ranks that do the same; else every rank is simulated, and every group and pair
    // has its own flows.
    bool is_folded = true;
    // False: every kernel and communication takes the time that it takes alone, whatever runs beside it. A
    // step is then the longest path through its instructions.
    bool shares_links = true;
    // False: hosts dispatch in no time, whatever profiles say.
    bool counts_hosts = true;
    // Only the step's time: memory, rates, breakdown and assumptions stay empty, and every plan fits.
    bool step_only = false;
    // False: the breakdown stays empty, which is quicker.
    bool breaks_down = true;
    // Prove every lowered Program before it is simulated. A planner that has proven a schedule once may leave
    // it out.
    bool verifies = true;
    // Of the graph: stages that are alike are looked at once. Null: each is.
    model::Repetition* repetition = nullptr;
    // Of the graph as the plan lays it out (schedule/plan/planned_graph.h), which must be given so. Null: an
    // evaluation makes what it needs.
    model::KnownSegmentGraphs* known_graphs = nullptr;
    // Where links are not shared: prices of collectives that plans of one base on this cluster share. Null:
    // an evaluation makes its own.
    KnownCandidates* known_candidates = nullptr;
    // Of the same graph and plan; null: every evaluation lowers its own.
    LoweredPrograms* lowered = nullptr;
    // Of plans of any graph; null: an evaluation looks for its own.
    RepeatedBlocks* blocks = nullptr;
};

// The plan must have passed schedule::check_plan; a plan that does not fit memory is still evaluated (`fits`
// = false). An operator or precision the device has no figure for is a diagnostic; nothing is returned then.
std::optional<Evaluation> evaluate(const model::ModelGraph& graph, const cluster::Cluster& cluster,
                                   const schedule::Plan& plan, core::Diagnostics& diagnostics,
                                   const EvaluateOptions& options = {});

// The partition that `evaluate` gives a plan (see priced_partition.h): its own; else by prices, or by FLOPs
// (schedule::complete_partition) where the device has no price for the model. Nothing when there are fewer
// units than stages.
std::optional<schedule::Partition> complete_partition(const schedule::Plan& plan,
                                                      const model::ModelGraph& graph,
                                                      const cluster::Cluster& cluster,
                                                      const CostConstants& constants = {});

// The keys of the command-line contract (step_time_s, samples_per_s, ..., memory[], breakdown_s,
// usd_per_hour, usd_per_million_samples, assumptions).
core::Value to_value(const Evaluation& evaluation, const model::ModelGraph& graph,
                     const schedule::Plan& plan);

}  // namespace sim
