// Interpreter 2 of a Program: a real clock. Every rank performs its list from top to bottom on this machine's
// processor; what is measured comes back in the types in which the simulator predicts.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/diagnostics_fwd.h"
#include "core/units.h"
#include "exec/data.h"
#include "exec/runtime/learning_rate.h"
#include "model/model_fwd.h"
#include "model/operators/cost_context.h"
#include "schedule/program/program.h"
#include "schedule/program/timeline.h"

namespace exec {

class Checkpoint;
class InitialWeights;
struct HostFolders;

struct CheckpointOptions {
    std::string directory;  // empty = none are written; nor does a Program that only evaluates write any
    int every = 0;          // steps; also after the last one. 0 = only then
    int keep = 2;           // the newest ones
    bool sets_aside_later = false;  // set_aside_later, with the step where the run begins; who leaves it out
                                    // has seen that there are none
    std::vector<std::int64_t> damaged_steps = {};          // set_aside_damaged
    std::shared_ptr<const HostFolders> host_folders = {};  // null: all ranks share `directory`
};

// Held-out data, on which parameters are evaluated between steps.
struct EvaluationOptions {
    std::shared_ptr<const DataSource> data;  // null: none
    int every = 0;    // steps from the beginning of the training; also after the last one. 0 = only then
    int batches = 1;  // of the plan's global batch, always the data's first ones
};

class RunObserver;
class Backend;
struct BackendRequest;
// Makes the backend of one rank, in the rank's thread.
using BackendMaker = std::function<std::unique_ptr<Backend>(const BackendRequest&)>;

struct RunOptions {
    int steps = 1;                // to perform; 0: with checkpoints, the initial state is written
    std::int64_t first_step = 0;  // number of the first of them
    std::int64_t sample_offset =
        0;  // of the first sample of step 0: other than 0 after a resumption with another batch
    CheckpointOptions checkpoints;
    std::shared_ptr<const Checkpoint> resumed;      // where to begin; null = initial values
    std::shared_ptr<const InitialWeights> initial;  // those; null = seeded ones
    EvaluationOptions evaluation;                   // by the CPU backend alone
    int warm_up_steps =
        0;  // performed and trained, but left out of the times (the first `warm_up_steps` of `steps`)
    std::uint64_t seed = 1234;
    LearningRateSchedule learning_rate;  // other than constant: by the CPU backend alone
    core::Seconds time_limit{120};       // the longest a rank may wait for another before all are stopped
    // Asked on every rank before every step, from any thread: the signal by which this process was told to
    // end. When any rank has one, all end at that step with a checkpoint.
    std::function<std::optional<int>()> termination;
    bool is_observed = false;               // on every rank alike: rank 0 learns each step's loss
    std::shared_ptr<RunObserver> observer;  // of an observed run, on rank 0
    int ranks_per_node = 0;                 // for the choice of collectives; 0 = all ranks on one
    bool overlaps = false;  // buckets are exchanged in a second thread of the rank while it computes; else
                            // all is done in list order
    bool times_operators = false;
    bool probes_speed = false;  // before every step each rank times a product of a fixed size: how fast the
                                // machine is just now
    BackendMaker make_backend;  // empty: this processor
    bool keeps_state = false;   // gradients of the last step and parameters after it, whole, in the result
};

// One operator in one phase, once: with what the executor does around the kernel (room for results, zeros for
// new gradients).
struct OperatorSample {
    std::int32_t op = 0, step = 0, rank = 0;
    std::int32_t segment = 0;  // of the sequence
    model::Phase phase = model::Phase::forward;
    core::Seconds time, on_core;  // by the clock, and of that on a core (zero where it is not measured)
};

// How good a step was to measure.
struct StepConditions {
    core::Seconds probe;    // probes_speed: mean over ranks; else zero
    double lost_share = 0;  // RunResult::lost_share of this step
};

// Which implementation a backend took for an operation of which it has several, and why not the faster one.
struct KernelChoice {
    std::string operation, implementation;
    std::string reason;  // empty: nothing is faster
    auto operator<=>(const KernelChoice&) const = default;
};

// All ranks ended before the last step because one was told to.
struct Interruption {
    int signal = 0;
    std::int64_t completed = 0;  // steps of this run; those before it and these are in the checkpoint
};

// The loss on held-out data.
struct Evaluated {
    std::int64_t step = 0;  // so many are completed
    double loss = 0;        // mean over the batches
};

struct RunResult {
    std::optional<Interruption> interruption;
    std::vector<Evaluated> evaluations;
    std::vector<double> losses;                 // by step, mean over the global batch
    std::vector<core::Seconds> step_times;      // by step, warm-up included
    std::vector<schedule::Timeline> timelines;  // by step
    schedule::MemoryTimeline memory;            // samples are of the last step; peaks of the whole run
    std::string instruction_set;
    std::vector<KernelChoice> kernel_choices;  // of rank 0, where its backend has a choice
    core::Seconds probe;                       // probes_speed: the median over steps and ranks; else zero
    double lost_share = 0;  // of the ranks' computing time, when other threads had their cores: ranks beyond
                            // the cores, or other processes
    std::vector<StepConditions> conditions;  // by step
    std::vector<std::vector<std::vector<core::Seconds>>>
        on_core;                                   // [step][rank]: of the spans in `timelines`
    std::vector<OperatorSample> operator_samples;  // of all ranks, when asked for
    // keeps_state: by parameter, unsplit.
    std::vector<std::vector<float>> gradients, parameters;
    double largest_copy_difference =
        0;  // between copies of one parameter on different ranks, relative to its largest element
};

// What the CPU backend does not execute, each named, before anything is allocated.
void check_runnable(const schedule::Plan& plan, const model::ModelGraph& graph,
                    core::Diagnostics& diagnostics);

// Ranks as threads of this process. The Program must have passed schedule::verify and its plan
// check_runnable. A rank that fails or waits too long stops all others: core::MachineError names it and its
// instruction.
RunResult run(const schedule::Program& program, const model::ModelGraph& graph,
              std::shared_ptr<const DataSource> data, const RunOptions& options);

// Steps after the warm-up that tell how long one takes: those in which other processes (or
// other machines of a virtual one's host) had the ranks' cores for at most 2 % of their computing time, where
// they are at least a quarter of all and three; else all. `has_core_each`: ranks beyond the cores take them
// from each other in every step, so that none is left out.
std::vector<std::size_t> measured_steps(const RunResult& result, int warm_up_steps, bool has_core_each);

struct StepTimes {
    core::Seconds median, least, p95;
    int steps = 0, left_out = 0;  // measured, and after the warm-up but disturbed
    double lost_share = 0;        // StepConditions, mean over the measured steps
    core::Seconds p10, p90;
};
StepTimes summarize(const RunResult& result, const std::vector<std::size_t>& steps, int warm_up_steps);
// The timeline of the step, one of `steps`, whose time is nearest to `median`.
const schedule::Timeline& nearest_timeline(const RunResult& result, const std::vector<std::size_t>& steps,
                                           core::Seconds median);

}  // namespace exec
