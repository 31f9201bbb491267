// All pipeline schedules by name. A generator is one file and one line in registry.cpp; simulator, executor
// and planner enumerate this list.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/unsupported.h"
#include "schedule/pipeline/parameters.h"
#include "schedule/schedule.h"

namespace schedule {

// Relative times of one micro-batch in one virtual stage, and the change of its rank's activation memory when
// the action starts (positive) or ends (negative). By default backward_weight frees all that forward took.
struct RelativeStageCost {
    double forward = 1, backward_input = 1, backward_weight = 1;
    double memory_forward = 1, memory_backward_input = 0, memory_backward_weight = -1;
    bool operator==(const RelativeStageCost&) const = default;
};

// Input of a generator: the shape, and relative costs for run-time policies (SMP interleaved) and time-aware
// schedules.
struct PipelineShape {
    int ranks = 1;
    int chunks = 1;  // virtual stages per rank
    int micro_batches = 1;
    ScheduleParameters parameters;  // of the schedule's kind; of another one: its defaults
    double forward = 1, backward_input = 1, backward_weight = 1,
           transfer = 0;  // relative times, equal stages
    std::vector<RelativeStageCost>
        stage_costs;  // unequal stages, [virtual stage]; empty = the equal times above
    // Limit of a rank's activations, in the unit of the stage costs. Without one the schedule's own limit
    // holds.
    std::optional<double> memory_limit;

    int stages() const { return ranks * chunks; }
    // Micro-batches per group, of a schedule that takes groups.
    int group_size() const { return parameters_or_default<GroupParameters>(parameters).size(ranks); }
    RelativeStageCost cost(int stage) const;
};

struct PipelineSchedule {
    std::string name;        // "1f1b"
    std::string summary;     // one line
    std::string source;      // paper or code it comes from
    std::string bubble;      // formula, text
    std::string in_flight;   // formula, text
    std::string constraint;  // on micro-batches and chunks, text
    bool splits_backward = false;
    bool is_forward_only = false;
    int least_chunks = 1, greatest_chunks = 1 << 20;
    ScheduleParameters parameters;  // the kind that it takes, with its defaults
    // The constraint that the shape violates, in words with the shape's numbers.
    std::optional<core::Unsupported> (*unsupported)(const PipelineShape& shape) = nullptr;
    Schedule (*generate)(const PipelineShape& shape) = nullptr;  // for allowed shapes
    std::vector<std::string> aliases;
    bool is_asynchronous = false;     // no flush between steps: several weight versions
    bool is_bidirectional = false;    // several replicas of every stage
    bool goes_forward_first = false;  // on every rank all passes forward come before the first backward
    bool orders_by_times = false;     // the order depends on the times of the shape, not on its numbers alone
    bool overlaps_forward_backward = false;  // has slots in which a forward and a backward run together

    // Passes sequences on in parts.
    bool cuts_sequences() const { return std::holds_alternative<SegmentParameters>(parameters); }
    // The given parameters where they are of this schedule's kind, its defaults where they are not.
    const ScheduleParameters& parameters_from(const ScheduleParameters& given) const {
        return given.index() == parameters.index() ? given : parameters;
    }
};

const std::vector<PipelineSchedule>& pipeline_schedules();
// By name or alias ("simple" = "gpipe"); null when unknown.
const PipelineSchedule* find_pipeline_schedule(const std::string& name);
// Why the schedule does not exist for the shape: checks that all schedules share (positive degrees, their
// range of chunks), then the schedule's own.
std::optional<core::Unsupported> unsupported(const PipelineSchedule& schedule, const PipelineShape& shape);

}  // namespace schedule
