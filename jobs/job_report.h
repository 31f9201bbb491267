// A job's answer in words and as JSON.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/value.h"
#include "jobs/checkpoint_search.h"
#include "jobs/job_distribution.h"
#include "jobs/job_run.h"
#include "jobs/resolve_job.h"

namespace jobs {

struct JobAnswer {
    ResolvedJob job;
    JobDistribution distribution;
    std::optional<BestInterval> best;
    JobRun median;                   // the run whose total is the median
    std::vector<Stretch> stretches;  // of that run
    Goals goals;
};

// The keys of the command-line contract (hours_mean, usd_p50, goodput_p90, interruptions_mean, step_time_s,
// ...); usd_ keys are null where no price is known.
core::Value to_value(const JobAnswer& answer);
// Effective configuration, distribution, bill and chart of the median run, checkpoint interval, assumptions.
std::string text_of(const JobAnswer& answer, const std::string& question);

}  // namespace jobs
