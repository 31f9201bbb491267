// All pipeline schedules by name. A generator is one file and one line in registry.cpp; simulator, executor and planner enumerate this list.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/diagnostics.h"
#include "schedule/schedule.h"

namespace schedule {

// What a generator may ask: the shape, and for run-time policies (SMP interleaved) and time-aware ones the relative costs.
struct PipelineShape {
    int ranks = 1;
    int chunks = 1;              // virtual stages per rank
    int micro_batches = 1;
    int active_micro_batches = 0;  // SMP interleaved; 0 = ranks + 2 (SMP's default)
    int group_size = 0;            // interleaved 1F1B; 0 = ranks
    bool is_strict = true;         // SMP optimize = "memory": strict; "speed": less strict
    double forward = 1, backward_input = 1, backward_weight = 1, transfer = 0;  // relative times
};

struct PipelineSchedule {
    std::string name;          // "1f1b"
    std::string summary;       // one line
    std::string source;        // paper or code it comes from
    std::string bubble;        // formula, text
    std::string in_flight;     // formula, text
    std::string constraint;    // on micro-batches and chunks, text
    bool splits_backward = false;
    bool is_forward_only = false;
    int least_chunks = 1, greatest_chunks = 1 << 20;
    // Nothing when the shape is allowed, else the violated constraint in words with the shape's numbers.
    std::optional<std::string> (*violation)(const PipelineShape& shape) = nullptr;
    Schedule (*generate)(const PipelineShape& shape) = nullptr;  // for allowed shapes
};

const std::vector<PipelineSchedule>& pipeline_schedules();
// By name or alias ("simple" = "gpipe"); null when unknown.
const PipelineSchedule* find_pipeline_schedule(const std::string& name);

}  // namespace schedule
