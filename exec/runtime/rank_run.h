// One rank from its first step to its last, wherever it runs: a thread of this process, or a process of its
// own among others.
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "exec/data.h"
#include "exec/runtime/rank_executor.h"
#include "exec/runtime/run.h"
#include "exec/runtime/stage_plan.h"
#include "exec/transport/communicator.h"
#include "model/segment.h"

namespace exec {

// What the ranks of one process share.
struct RunPreparation {
    model::SegmentGraphs graphs;                       // of what passes at once: schedule::segment_graphs
    std::vector<StagePlan> stage_plans;                // by Program::row_of
    std::vector<std::vector<std::string>> activities;  // by class and instruction: schedule::describe
    std::vector<StagePlan> evaluation_plans;           // for RankExecutor::evaluate, when asked for
};
RunPreparation prepare_run(const schedule::Program& program, const model::ModelGraph& graph,
                           bool evaluates = false);

// What one rank measured.
struct RankRecord {
    std::vector<Clock::time_point> begins;            // of steps
    std::vector<std::vector<InstructionTime>> steps;  // by step, in list order
    std::vector<double> losses;                       // by step, on ranks that know them
    std::vector<Evaluated> evaluations;               // likewise
    std::vector<schedule::MemorySample> samples;      // of the last step
    core::Bytes peak;
    std::array<core::Bytes, schedule::memory_kind_count> at_peak;
    std::vector<OperatorSample> operator_samples;
    std::vector<KernelChoice> kernel_choices;
    std::vector<double> probes;                        // seconds, by step
    std::vector<double> step_computing, step_on_core;  // seconds, by step
    double computing = 0, on_core = 0;                 // seconds
    int interruption = 0;                              // the signal after which no more steps began; 0 = none
};

// Builds this rank's executor and performs all steps. `core` of `cores` is where the thread would like to
// stay. `before_end` sees the executor after the last step, when no rank computes any more.
RankRecord run_rank(const schedule::Program& program, const model::ModelGraph& graph,
                    const InputReader& inputs, const RunOptions& options, Communicator& communicator,
                    const RunPreparation& preparation, int core, int cores,
                    const std::function<void(RankExecutor&)>& before_end = {});

// Records by rank, their clocks alike.
RunResult assemble(const schedule::Program& program, std::vector<RankRecord> records);

}  // namespace exec
