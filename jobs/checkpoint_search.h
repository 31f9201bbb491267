// How often to write checkpoints so that the mean time to train is least, by simulation: any law of failures,
// reclaims and evaluations; with the formulas that know exponential failures alone beside it.
#pragma once

#include <cstdint>
#include <optional>

#include "core/units.h"
#include "jobs/job_model.h"

namespace jobs {

struct BestInterval {
    std::int64_t every = 1;       // steps
    core::Seconds interval;       // of computing
    double hours_mean = 0;        // of the runs of the search
    double hours_mean_given = 0;  // of the same runs with the job's own interval
    // sqrt(2 d M) and its refinement, where failures are exponential.
    std::optional<core::Seconds> young, daly;
};

// The least mean over the same seeded failures for every candidate: a grid of intervals in equal ratios, then
// finer around its best. Nothing where no checkpoint is written, nothing interrupts, or no candidate
// finishes.
std::optional<BestInterval> find_best_interval(const JobModel& model, const SimulationRule& rule);

}  // namespace jobs
