// Predicted against measured: two timelines of one Program, two memory timelines, one table.
#pragma once

#include <string>
#include <vector>

#include "core/value.h"
#include "schedule/program.h"
#include "schedule/timeline.h"

namespace exec {

// Time of one kind of instruction, summed over a rank's list and averaged over ranks; waiting included.
struct KindComparison {
    std::string kind;  // "forward", "backward", "send", "all_reduce parameter_gradient", ...
    int instructions = 0;
    core::Seconds predicted, measured;
};
struct Comparison {
    core::Seconds predicted_step, measured_step;
    core::Bytes predicted_peak, measured_peak;                 // of the rank that holds most
    std::vector<KindComparison> kinds;                         // in order of measured time, largest first
    std::vector<core::Bytes> predicted_peaks, measured_peaks;  // by rank
};

// Both timelines are of `program`; a predicted one may have one performer a class, which then stands for all its ranks.
Comparison compare(const schedule::Program& program, const schedule::Timeline& predicted, const schedule::MemoryTimeline& predicted_memory,
                   core::Seconds predicted_step, const schedule::Timeline& measured, const schedule::MemoryTimeline& measured_memory,
                   core::Seconds measured_step);

core::Value to_value(const Comparison& comparison);
std::string to_text(const Comparison& comparison);

}  // namespace exec
