// A job with nothing left open: durations of its parts, laws of what interrupts it, prices. What the
// simulation of jobs/job_run.h runs on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/units.h"
#include "jobs/job.h"
#include "jobs/training_axis.h"

namespace jobs {

struct Prices {
    std::optional<core::DollarsPerSecond> node;  // nothing: the profile has no price of that kind
    core::Seconds minimum, increment;            // of what is billed
    core::DollarsPerSecond storage;              // while the job lasts
};

// Steps vary from rank to rank; the slowest of `ranks` sets each step's pace.
struct Jitter {
    double mean = 1, deviation = 0;  // of the slowest rank's step time, as shares of a rank's mean
};

struct JobModel {
    int nodes = 1;
    core::Seconds acquire;               // before the bill begins
    core::Seconds image, data, warm_up;  // failures start these anew
    std::int64_t steps = 1;
    core::Seconds step;  // of the whole cluster, stragglers and jitter included
    std::optional<Evaluating> evaluating;
    std::optional<Checkpointing> checkpointing;
    core::Seconds checkpoint_write;  // what one write takes, beside the training or not
    core::Seconds upload, release;
    core::Seconds keep_alive;  // in a warm pool after the job, paid
    std::optional<FailureRule> failures;
    std::optional<SpotRule> spot;  // its restart is filled in
    std::optional<Jitter> jitter;
    std::optional<ElasticRule> elastic;
    // Elastic: step time with that many nodes, by nodes; nothing where the plan has no such form.
    std::vector<std::optional<core::Seconds>> step_of_nodes;
    Prices prices;
    std::vector<std::string> assumptions;

    core::Seconds preparation() const { return image + data + warm_up; }
    int held_nodes() const { return nodes + (elastic ? elastic->spares : 0); }
    // With steps of another length than `step`: fewer nodes, or this run's jitter.
    TrainingAxis axis(core::Seconds step_time) const { return {steps, step_time, evaluating, checkpointing}; }
    // A run that nothing interrupts: the sum of the parts.
    core::Seconds undisturbed() const;
    // Mean time between failures of all nodes together.
    std::optional<core::Seconds> cluster_mtbf() const;
};

}  // namespace jobs
