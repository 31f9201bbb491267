// Many runs of a job: how long, for how much, how often interrupted.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/units.h"
#include "jobs/job_model.h"
#include "jobs/job_run.h"

namespace jobs {

struct Quantiles {
    double mean = 0, p10 = 0, p50 = 0, p90 = 0;
};
// Of one value at least; between two ranks the value is interpolated. The mean of equal values is that value.
Quantiles quantiles_of(std::vector<double> values);

// How many of the runs meet what is asked; nothing where it is not asked.
struct Chances {
    std::optional<double> in_time, within_budget, both;
};

struct JobDistribution {
    Quantiles hours, goodput, interruptions;
    std::optional<Quantiles> usd;  // nothing: no price is known
    double failures_mean = 0, reclaims_mean = 0;
    // Means over the runs, of one run in hours.
    double lost_hours = 0, detecting_hours = 0, restarting_hours = 0, waiting_hours = 0, reduced_hours = 0;
    double hours_mean_error = 0;  // 1.96 standard errors of hours.mean
    Chances chances;
    std::uint64_t median_run = 0;  // number of the run whose total is the lower median
    std::int64_t unfinished = 0;   // runs given up: the other figures then say nothing
    std::int64_t runs = 0;
};

// What the job is held against; nothing: no question.
struct Goals {
    std::optional<core::Seconds> finish_by;
    std::optional<core::Dollars> budget;
};

// The same answer for any number of threads (0: one a core). Ends early when a run does not finish.
JobDistribution simulate_job(const JobModel& model, const SimulationRule& rule, const Goals& goals = {});

}  // namespace jobs
