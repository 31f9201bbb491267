// A training without interruptions as a clock of its own: after which step is it how late, and which
// checkpoint is safe by then. All answers are closed forms, so that a run of months costs no more than its
// interruptions.
#pragma once

#include <cstdint>
#include <optional>

#include "core/units.h"

namespace jobs {

struct Checkpointing {
    std::int64_t every = 1;  // steps
    core::Seconds blocking;  // the training waits this long for each: the write, or the snapshot alone
    core::Seconds beside;    // ... and so much later it is safe: the write beside the training
};

struct Evaluating {
    std::int64_t every = 1;  // steps
    core::Seconds time;
};

// After a step come its evaluation and then its checkpoint. Checkpoints are at multiples of `every` and after
// the last step, whose write is waited for to the end.
class TrainingAxis {
public:
    TrainingAxis(std::int64_t steps, core::Seconds step, std::optional<Evaluating> evaluating,
                 std::optional<Checkpointing> checkpointing);

    std::int64_t steps() const { return steps_; }
    core::Seconds step() const { return core::seconds(step_); }
    // The clock when `steps` steps are done with all that follows them.
    core::Seconds at(std::int64_t steps) const;
    core::Seconds length() const { return at(steps_); }

    std::int64_t evaluations(std::int64_t steps) const;
    std::int64_t checkpoints(std::int64_t steps) const;
    core::Seconds evaluation_time(std::int64_t steps) const;
    core::Seconds checkpoint_time(std::int64_t steps) const;

    // Steps of the last checkpoint that is safe when the clock shows `time`; 0 when none is.
    std::int64_t safe_steps(core::Seconds time) const;
    // Steps that are done when the clock shows `time`.
    std::int64_t done_steps(core::Seconds time) const;
    // Steps of the first checkpoint that is over at or after `time`; nothing when the training ends first.
    std::optional<std::int64_t> next_checkpoint(core::Seconds time) const;

    // How much of the clock up to `time` was computing, evaluating and waiting for checkpoints.
    struct Shares {
        core::Seconds computing, evaluating, checkpointing;
    };
    Shares shares(core::Seconds time) const;

private:
    std::int64_t steps_;
    double step_;
    std::optional<Evaluating> evaluating_;
    std::optional<Checkpointing> checkpointing_;
};

}  // namespace jobs
