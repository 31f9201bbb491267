// What one slow device, one slow node's network, or steps that vary do to the step of all: every rank is
// simulated on its own, and only the slow ones' instructions last longer.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/diagnostics_fwd.h"
#include "core/units.h"
#include "jobs/job.h"
#include "jobs/job_model.h"
#include "sim/scenario.h"

namespace jobs {

// The straggler at one place: the slow device is rank `rank`, the slow node the one it is on.
struct StragglerPlace {
    int rank = 0, pipeline = 0;
    double ratio = 1;  // of the step's time with it to that without
};

struct StragglerEffect {
    std::vector<StragglerPlace> places;  // one for each pipeline coordinate
    StragglerPlace worst;
};

// Simulates the plan's step unfolded, once as it is and once for every place. A plan whose ranks are too many
// to be simulated one by one is a diagnostic.
std::optional<StragglerEffect> straggler_effect(const sim::Scenario& scenario, const StragglerRule& rule,
                                                core::Diagnostics& diagnostics);

// The greatest of `ranks` independent normal step times of mean 1 and deviation `deviation`: its mean and
// deviation, by integration of its distribution.
Jitter jitter_of(int ranks, double deviation);

}  // namespace jobs
