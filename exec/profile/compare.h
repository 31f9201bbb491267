// Predicted against measured: two timelines of one Program, two memory timelines, one table.
#pragma once

#include <string>
#include <vector>

#include "core/value.h"
#include "schedule/program/program.h"
#include "schedule/program/timeline.h"

namespace exec {

// Time of one kind of instruction, summed over a rank's list and averaged over ranks; waiting included.
struct KindComparison {
    std::string kind;  // "forward", "backward", "send", "all_reduce parameter_gradient", ...
    int instructions = 0;
    core::Seconds predicted, measured;
};
// What crosses one kind of link, summed over ranks: bytes that leave a rank in a step; times are a rank's,
// averaged, waiting included.
struct LinkComparison {
    std::string link;  // "within a host", "between hosts"
    core::Bytes bytes;
    core::Seconds predicted, measured;
};
struct MemoryComparison {
    std::string kind;                 // "parameters", ...
    core::Bytes predicted, measured;  // held by the fullest rank when it held most
};
// Where four of five repetitions lie: their quantiles of 10 and 90 %.
struct StepInterval {
    core::Seconds low, high;
};
struct Comparison {
    core::Seconds predicted_step, measured_step;
    // Zeros: not known. The predicted one is what the profile's repetitions make of the predicted step.
    StepInterval predicted_interval, measured_interval;
    core::Bytes predicted_peak, measured_peak;                 // of the rank that holds most
    std::vector<KindComparison> kinds;                         // in order of measured time, largest first
    std::vector<core::Bytes> predicted_peaks, measured_peaks;  // by rank
    std::vector<LinkComparison> links;
    std::vector<MemoryComparison> memory;
    double speed_ratio = 0;  // of the machine while it ran to while it was profiled; 0 = not known
    std::string
        verdict;  // which kind misses most, and why, in words; empty when the step is predicted within 5 %
};

struct ComparisonContext {
    int ranks_per_host = 0;                        // 0 = all ranks on one
    core::Seconds profiled_probe, measured_probe;  // RunResult::probe then and now
    double lost_share = 0;                         // StepTimes::lost_share
    double profile_low = 1, profile_high = 1;      // PlanProfile::low_share, high_share
    StepInterval measured_interval;                // of the measured steps
};

// Both timelines are of `program`; a predicted one may have one performer a class, which then stands for all
// its ranks.
Comparison compare(const schedule::Program& program, const schedule::Timeline& predicted,
                   const schedule::MemoryTimeline& predicted_memory, core::Seconds predicted_step,
                   const schedule::Timeline& measured, const schedule::MemoryTimeline& measured_memory,
                   core::Seconds measured_step, const ComparisonContext& context = {});

// False when repetitions alone differ by as much: the intervals have a step time in common.
bool exceeds_noise(const Comparison& comparison);

core::Value to_value(const Comparison& comparison);
std::string to_text(const Comparison& comparison);

}  // namespace exec
