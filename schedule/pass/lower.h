// Plan + model -> Program. Passes, each with its invariant: stages and boundaries; compute with
// recomputation; pipeline transfers; tensor-parallel collectives; gradient buckets and their reduction;
// sharding; optimizer step; buffers. See pass/.
#pragma once

#include <optional>

#include "core/diagnostics_fwd.h"
#include "model/model_fwd.h"
#include "schedule/plan/plan.h"
#include "schedule/program/program.h"
#include "schedule/schedule.h"

namespace schedule {

struct PipelineShape;

struct LowerOptions {
    int micro_batches = 0;      // 0 = the plan's
    bool has_optimizer = true;  // false: forward-only evaluation
    // False: Program::model_hash stays empty, for Programs that nobody verifies, keeps or runs.
    bool hashes_model = true;
    // Of the graph: stages that are alike are looked at once. Null: each is.
    model::Repetition* repetition = nullptr;
    // Of what passes at once (segment_graphs); null: they are made.
    const model::SegmentGraphs* graphs = nullptr;
    // What a pass computes and exchanges with its tensor group, up to where anything runs beside it, is one
    // instruction: for Programs of which only times and memory are asked.
    bool joins_passes = false;
};

// What the plan asks of its schedule (registry.h): degrees, micro-batches, parameters.
PipelineShape shape_of(const Plan& plan);
// The schedule the plan names, for its shape. A violated constraint is a diagnostic.
std::optional<Schedule> make_schedule(const Plan& plan, core::Diagnostics& diagnostics,
                                      int micro_batches = 0);

// Is there a schedule of that name, whatever the plan?
bool check_schedule_name(const std::string& name, core::Diagnostics& diagnostics,
                         const core::SourceLocation& location);
// The same check without making it: false when the plan's schedule is unknown, cannot train with a plan, or
// its constraint is violated.
bool check_schedule(const Plan& plan, core::Diagnostics& diagnostics, int micro_batches = 0,
                    const core::SourceLocation& location = {});

// `plan.partition` must be complete (partition.h). The plan must have passed check_plan.
Program lower(const Plan& plan, const model::ModelGraph& graph, const Schedule& order,
              const LowerOptions& options = {});

// A Program with one class per pipeline rank, compute and transfers only, no operators behind it: for timing
// a schedule with given stage times.
Program lower_compute_only(const Schedule& order);

}  // namespace schedule
