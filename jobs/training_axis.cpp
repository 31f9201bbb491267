#include "jobs/training_axis.h"

#include <algorithm>
#include <cmath>

#include "core/errors.h"

namespace jobs {

namespace {

// The greatest n of [0, most] with at(n) <= time, or 0. at(n) must lie between per_item n - slack and
// per_item n + slack: the search is between what that allows.
template <class At>
std::int64_t last_not_after(double time, std::int64_t most, double per_item, double slack, At at) {
    if (per_item <= 0) return most;
    constexpr double rounding = 2;  // items, on either side
    const auto item = [&](double guess) { return std::int64_t(std::clamp(guess, 0.0, double(most))); };
    std::int64_t low = item((time - slack) / per_item - rounding);
    std::int64_t high = item((time + slack) / per_item + rounding);
    while (low < high) {
        const std::int64_t middle = low + (high - low + 1) / 2;
        if (at(middle) <= time) low = middle;
        else high = middle - 1;
    }
    return low;
}

}  // namespace

TrainingAxis::TrainingAxis(std::int64_t steps, core::Seconds step, std::optional<Evaluating> evaluating,
                           std::optional<Checkpointing> checkpointing)
    : steps_(steps), step_(step.value), evaluating_(evaluating), checkpointing_(checkpointing) {
    core::require(steps > 0 && step.value > 0, "a training has steps, and each takes time");
    core::require(!evaluating || evaluating->every > 0, "evaluations are some steps apart");
    core::require(!checkpointing || checkpointing->every > 0, "checkpoints are some steps apart");
}

std::int64_t TrainingAxis::evaluations(std::int64_t steps) const {
    return evaluating_ ? steps / evaluating_->every : 0;
}

std::int64_t TrainingAxis::checkpoints(std::int64_t steps) const {
    if (!checkpointing_) return 0;
    const bool has_last = steps == steps_ && steps % checkpointing_->every != 0;
    return steps / checkpointing_->every + (has_last ? 1 : 0);
}

core::Seconds TrainingAxis::evaluation_time(std::int64_t steps) const {
    return evaluating_ ? evaluating_->time * double(evaluations(steps)) : core::Seconds();
}

core::Seconds TrainingAxis::checkpoint_time(std::int64_t steps) const {
    if (!checkpointing_) return {};
    const core::Seconds blocked = checkpointing_->blocking * double(checkpoints(steps));
    return steps == steps_ ? blocked + checkpointing_->beside : blocked;
}

core::Seconds TrainingAxis::at(std::int64_t steps) const {
    return core::seconds(double(steps) * step_) + evaluation_time(steps) + checkpoint_time(steps);
}

std::int64_t TrainingAxis::safe_steps(core::Seconds time) const {
    if (!checkpointing_) return 0;
    if (time >= length()) return steps_;
    const std::int64_t every = checkpointing_->every;
    // The last one is safe at the very end only, which is behind us here.
    const std::int64_t most = (steps_ - 1) / every;
    const double evaluation = evaluating_ ? evaluating_->time.value : 0;
    const double per_checkpoint = double(every) * step_ + checkpointing_->blocking.value +
                                  (evaluating_ ? evaluation * double(every) / double(evaluating_->every) : 0);
    const double beside = checkpointing_->beside.value;
    // Evaluations come in whole: up to one less than their mean share.
    const std::int64_t number =
        last_not_after(time.value, most, per_checkpoint, beside + evaluation,
                       [&](std::int64_t n) { return n == 0 ? 0.0 : at(n * every).value + beside; });
    return number * every;
}

std::int64_t TrainingAxis::done_steps(core::Seconds time) const {
    if (time >= length()) return steps_;
    const double evaluation = evaluating_ ? evaluating_->time.value : 0;
    const double checkpoint = checkpointing_ ? checkpointing_->blocking.value : 0;
    const double per_step = step_ + (evaluating_ ? evaluation / double(evaluating_->every) : 0) +
                            (checkpointing_ ? checkpoint / double(checkpointing_->every) : 0);
    // The step itself is done before its evaluation and its checkpoint begin.
    return last_not_after(time.value, steps_ - 1, per_step, evaluation + checkpoint, [&](std::int64_t n) {
        return n == 0 ? 0.0 : (at(n - 1) + core::seconds(step_)).value;
    });
}

std::optional<std::int64_t> TrainingAxis::next_checkpoint(core::Seconds time) const {
    if (!checkpointing_ || time >= length()) return std::nullopt;
    const std::int64_t every = checkpointing_->every;
    std::int64_t number = done_steps(time) / every;
    while (number * every < steps_ && at(number * every) < time) ++number;
    if (number * every >= steps_) return std::nullopt;
    return number * every;
}

TrainingAxis::Shares TrainingAxis::shares(core::Seconds time) const {
    const core::Seconds clock = std::min(time, length());
    if (clock >= length())
        return {core::seconds(double(steps_) * step_), evaluation_time(steps_), checkpoint_time(steps_)};
    const std::int64_t done = done_steps(clock);
    Shares shares{core::seconds(double(done) * step_), evaluation_time(done > 0 ? done - 1 : 0),
                  checkpoint_time(done > 0 ? done - 1 : 0)};
    if (done == 0) {
        shares.computing = std::max(clock, core::Seconds());
        return shares;
    }
    // What follows the last step that is done: its evaluation, its checkpoint, then the next step.
    core::Seconds left = clock - (at(done - 1) + core::seconds(step_));
    const core::Seconds evaluated = std::min(left, evaluation_time(done) - evaluation_time(done - 1));
    shares.evaluating += evaluated;
    left -= evaluated;
    const core::Seconds saved = std::min(left, checkpoint_time(done) - checkpoint_time(done - 1));
    shares.checkpointing += saved;
    shares.computing += left - saved;
    return shares;
}

}  // namespace jobs
