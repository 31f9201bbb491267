// Jobs for tests: Daly's, with everything else left out.
#pragma once

#include "core/units.h"
#include "jobs/job_model.h"

namespace jobs_test {

struct DalyJob {
    std::int64_t steps;
    double step, node_mtbf_hours;
    std::int64_t every;  // steps between checkpoints
    double write, restart;
    int nodes;
};

inline jobs::JobModel model_of(const DalyJob& job) {
    jobs::JobModel model;
    model.nodes = job.nodes;
    model.steps = job.steps;
    model.step = core::seconds(job.step);
    model.checkpointing = jobs::Checkpointing{job.every, core::seconds(job.write), {}};
    model.checkpoint_write = core::seconds(job.write);
    model.failures = jobs::FailureRule();
    model.failures->node_mtbf = core::hours(job.node_mtbf_hours);
    model.failures->restart = core::seconds(job.restart);
    return model;
}

}  // namespace jobs_test
