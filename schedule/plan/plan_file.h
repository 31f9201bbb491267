// plan.toml: a plan with the model and cluster that it was made for, the training when it is executed, its
// prediction, and its origin. A scenario is the same file with a question and what-if overrides
// (sim/scenario.h reads those sections).
//
//   version = 1
//   [model]        name = "gpt-tiny"            (or config = "path/config.json", or family and dimensions)
//   [cluster]      instance = "p4d.24xlarge", nodes = 16
//   [plan]         the decision; every key of Plan: tensor_parallel, schedule, micro_batch, sharding, ...
//   [training]     optimizer, learning_rate, seed, steps, data
//   [prediction]   step_time_s, peak_memory_gib, ... as written by the planner
//   [provenance]   tool, version, model_hash, date
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/diagnostics_fwd.h"
#include "core/value.h"
#include "model/model_fwd.h"
#include "schedule/plan/plan.h"

namespace schedule {

inline constexpr int plan_file_version = 1;

// What a file of samples may be.
std::vector<std::string> data_formats();

struct Training {
    std::uint64_t seed = 1234;
    int steps = 20;
    std::string data;                           // path; empty = seeded synthetic data
    std::string data_format;                    // data_formats; empty = by the model and the path
    std::optional<std::uint64_t> shuffle_seed;  // samples in an order drawn anew every epoch; none = the
                                                // file's order
    // Held-out data: as above, evaluated after every so many steps (0 = after the last alone) on so many
    // global batches (0 = all whole ones that the data has). No data and no format = no evaluation.
    std::string eval_data, eval_data_format;
    int eval_every = 0, eval_batches = 0;
    bool operator==(const Training&) const = default;
};

struct PlanFile {
    std::string path;     // where it was read from; relative references are relative to its folder
    core::Value model;    // [model] table, for model::load_model
    core::Value cluster;  // [cluster] table, for cluster::load_cluster
    Plan plan;
    Training training;
    core::Value prediction;  // null when absent
    core::Value provenance;  // null when absent
};

// Reads `[plan]` (and optimizer keys of `[training]`) with every key diagnosed. SageMaker's own words are
// accepted: an inline SMP v1 `parameters` table
// ({partitions, microbatches, pipeline, optimize, placement_strategy, horovod, ddp, active_microbatches,
// tensor_parallel_degree, ...}) as `[plan.sagemaker]` with `processes_per_host`; what has no effect is a
// warning. `nodes` are the instances that `processes_per_host` counts for. Keys (defaults in plan.h):
// tensor_parallel, pipeline_parallel, data_parallel, virtual_stages, order or placement, schedule,
// what schedule_parameters.cpp reads, partition (first unit of each
// stage), micro_batch, micro_batches or global_batch, sharding, shard_degree, sequence_parallel,
// tensor_overlap, recompute, precision (a name, or a table {compute, parameters, gradients,
// master_parameters}), attention, fused_cross_entropy, gradient_bucket, overlaps_gradient_reduction,
// overlaps_parameter_gathering, collective, framework.
std::optional<Plan> read_plan(const core::Value& plan_table, const core::Value* training_table,
                              core::Diagnostics& diagnostics, int nodes = 1);
// Keys: optimizer, learning_rate, momentum, beta1, beta2, epsilon, weight_decay (all into plan.optimizer),
// seed, steps, data, data_format, shuffle_seed, eval_data, eval_data_format, eval_every, eval_batches.
std::optional<Training> read_training(const core::Value& training_table, Plan& plan,
                                      core::Diagnostics& diagnostics);
// [plan] without the optimizer, which stands in [training].
core::Value to_value(const Plan& plan);

std::optional<PlanFile> read_plan_file(const core::Value& document, const std::string& path,
                                       core::Diagnostics& diagnostics);
std::optional<PlanFile> load_plan_file(const std::string& path, core::Diagnostics& diagnostics);
// Lossless: read_plan_file(write(x)) == x for every field.
std::string write_plan_file(const PlanFile& file);

// What a name alone says of a plan's precision: fp32 and tf32 keep one copy; 16-bit formats train on fp32
// master parameters (Micikevicius et al., arXiv 1710.03740), and fp8 is bf16 in all but its products.
Precision precision_named(core::DataType compute);

// Does the plan fit the model and cluster together (degrees divide heads, layers, ranks equal devices in use,
// schedule's constraint on micro-batches, shard degree)? Errors name the key in the file when `plan_table` is
// given. `device_count` INT_MAX: ranks may share devices (local CPU). A vocabulary that the tensor-parallel
// degree does not divide is a warning: model costs pad it to the next multiple (model::share).
void check_plan(const Plan& plan, const model::ModelGraph& graph, int device_count,
                const core::Value* plan_table, core::Diagnostics& diagnostics);

}  // namespace schedule
