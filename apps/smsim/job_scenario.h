// A scenario with tables of jobs/, read for the commands about whole trainings.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/diagnostics_fwd.h"
#include "core/value.h"
#include "jobs/job.h"
#include "sim/scenario.h"

namespace apps {

struct JobScenario {
    core::Value document;
    sim::Scenario scenario;
    std::optional<jobs::Job> job;  // of [job], where there is one
};

// All that is wrong with the file is told at once. `set`: assignments of --set.
std::optional<JobScenario> read_job_scenario(const std::string& path, const std::vector<std::string>& set,
                                             core::Diagnostics& diagnostics);

}  // namespace apps
