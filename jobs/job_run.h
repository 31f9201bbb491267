// One run of a job: from the request to the release with the failures and reclaims of its seed. The clock
// jumps from interruption to interruption; what lies between is the closed form of jobs/training_axis.h.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/units.h"
#include "jobs/job_model.h"

namespace jobs {

// What the job does for a while. `training`: steps, evaluations and checkpoints that count; `lost`: the same
// after the last safe checkpoint before an interruption.
enum class StretchKind {
    acquire,
    image,
    data,
    warm_up,
    training,
    lost,
    detect,
    restart,
    wait,
    upload,
    release,
    keep_alive
};
std::string_view name_of(StretchKind kind);

struct Stretch {
    StretchKind kind = StretchKind::training;
    core::Seconds begin, end;       // since the request
    core::Seconds axis_begin = {};  // training: where the clock of the training stands at the begin
    core::Seconds step = {};        // training: of one step
};

struct JobRun {
    core::Seconds total;   // from the request to the release
    core::Seconds billed;  // of one node: rounded up to what is billed
    std::optional<core::Dollars> usd;
    double goodput = 0;  // steps that count, at full speed, over the total
    std::int64_t failures = 0, reclaims = 0;
    core::Seconds lost, detecting, restarting, waiting;
    core::Seconds reduced;    // training with fewer nodes than the job has
    bool is_finished = true;  // false: given up after `most_interruptions`
};

struct RunOptions {
    std::int64_t most_interruptions = 1'000'000;
    std::vector<Stretch>* stretches = nullptr;  // kept when given
};

// The same model, seed and number: the same run, bit by bit.
JobRun simulate_run(const JobModel& model, std::uint64_t seed, std::uint64_t number,
                    const RunOptions& options = {});

}  // namespace jobs
