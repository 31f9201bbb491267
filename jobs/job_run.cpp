#include "jobs/job_run.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/errors.h"
#include "core/random.h"
#include "jobs/interruption.h"

namespace jobs {

std::string_view name_of(StretchKind kind) {
    switch (kind) {
        case StretchKind::acquire: return "acquire";
        case StretchKind::image: return "image";
        case StretchKind::data: return "data";
        case StretchKind::warm_up: return "warm_up";
        case StretchKind::training: return "training";
        case StretchKind::lost: return "lost";
        case StretchKind::detect: return "detect";
        case StretchKind::restart: return "restart";
        case StretchKind::wait: return "wait";
        case StretchKind::upload: return "upload";
        case StretchKind::release: return "release";
        case StretchKind::keep_alive: return "keep_alive";
    }
    throw core::InternalError("broken promise: every kind of stretch has a name");
}

namespace {

constexpr core::Seconds never = core::seconds(std::numeric_limits<double>::infinity());

enum class Cause { failure, reclaim };

struct Interruption {
    Cause cause = Cause::failure;
    core::Seconds at;  // when the job stops; never: nothing comes
};

// Seeds of the parts of one run, so that one more draw of a part moves no other.
enum class Part : std::uint64_t { failures, reclaims, jitter };
std::uint64_t seed_of(std::uint64_t seed, std::uint64_t number, Part part) {
    return core::mix64(core::mix64(core::mix64(seed) + number) + std::uint64_t(part));
}

class Runner {
public:
    Runner(const JobModel& model, std::uint64_t seed, std::uint64_t number, const RunOptions& options)
        : model_(model), options_(options), step_(model.step), working_(model.nodes) {
        if (model.failures)
            failures_.emplace(*model.failures, model.nodes, seed_of(seed, number, Part::failures));
        if (model.spot) reclaims_.emplace(*model.spot, seed_of(seed, number, Part::reclaims));
        if (!model.jitter) return;
        core::Random random(seed_of(seed, number, Part::jitter));
        // The sum of many independent steps is normal, with the deviation of one times the root of their
        // number.
        const double share =
            model.jitter->deviation / model.jitter->mean / std::sqrt(double(model.steps)) * random.normal();
        step_ *= std::max(1 + share, 1 / model.jitter->mean);
    }

    JobRun run() {
        pass(StretchKind::acquire, model_.acquire);
        prepare();
        train();
        while (!given_up_ && !upload()) train();
        pass(StretchKind::release, model_.release);
        return finish();
    }

private:
    void prepare();
    void train();
    void reconfigure();
    bool upload();  // false: interrupted where nothing is saved, so that the training starts anew
    void recover(Cause cause);
    JobRun finish();

    Interruption next(bool is_training);
    TrainingAxis axis() const;
    std::int64_t steps_after(const TrainingAxis& axis, core::Seconds position, std::int64_t from,
                             Cause cause) const;
    bool saves_on_notice() const {
        return model_.spot && model_.spot->saves_on_notice && model_.checkpointing &&
               model_.checkpoint_write <= model_.spot->notice;
    }

    void pass(StretchKind kind, core::Seconds duration, core::Seconds axis_begin = {}) {
        if (duration.value <= 0) return;
        if (options_.stretches != nullptr)
            options_.stretches->push_back({kind, clock_, clock_ + duration, axis_begin, axis_step_});
        clock_ += duration;
    }
    // Time that a run without interruptions does not have.
    void pass_extra(StretchKind kind, core::Seconds duration, core::Seconds& sum) {
        pass(kind, duration);
        extra_ += duration;
        sum += duration;
    }

    // Training that counts, unless the job must begin anew.
    void pass_training(core::Seconds duration, core::Seconds axis_begin) {
        trained_ += duration;
        has_changed_axis_ = has_changed_axis_ || working_ < model_.nodes;
        if (working_ < model_.nodes) result_.reduced += duration;
        pass(StretchKind::training, duration, axis_begin);
    }

    void lose_node();
    void wait_for_nodes();
    // What nodes in repair would still be away counts no more.
    void forget_repairs() {
        for (core::Seconds at : returns_) absent_ -= std::max(at - clock_, core::Seconds());
        returns_.clear();
    }
    core::Seconds next_return() const;  // of a node in repair, when the job could use it
    int usable_nodes(core::Seconds now) const;

    const JobModel& model_;
    const RunOptions& options_;
    std::optional<FailureSource> failures_;
    std::optional<ReclaimSource> reclaims_;
    core::Seconds step_;  // with all nodes, in this run
    core::Seconds axis_step_;
    int working_;                         // nodes that train
    std::vector<core::Seconds> returns_;  // of nodes in repair, ascending
    core::Seconds clock_, extra_;
    std::int64_t from_ = 0;  // steps that are safe
    core::Seconds trained_;  // that counts
    bool has_changed_axis_ = false, given_up_ = false;
    core::Seconds absent_;    // node seconds of nodes in repair
    core::Seconds unbilled_;  // without instances, after the first were acquired
    JobRun result_;
};

TrainingAxis Runner::axis() const {
    if (working_ == model_.nodes || model_.step_of_nodes.empty()) return model_.axis(step_);
    const std::optional<core::Seconds>& reduced = model_.step_of_nodes[std::size_t(working_)];
    core::require(reduced.has_value(), "a job goes on only with nodes that it has a form for");
    return model_.axis(*reduced * (step_ / model_.step));
}

Interruption Runner::next(bool is_training) {
    Interruption first{Cause::failure, never};
    if (failures_) first.at = failures_->next_after(clock_, working_);
    if (!reclaims_) return first;
    core::Seconds at = reclaims_->next_after(clock_, model_.held_nodes());
    if (is_training && saves_on_notice()) at = std::max(clock_, at - model_.spot->notice);
    if (at < first.at) first = {Cause::reclaim, at};
    return first;
}

int Runner::usable_nodes(core::Seconds now) const {
    const auto away =
        std::count_if(returns_.begin(), returns_.end(), [&](core::Seconds at) { return at > now; });
    int nodes = std::min(model_.nodes, model_.held_nodes() - int(away));
    while (nodes > 0 && nodes < model_.nodes && !model_.step_of_nodes[std::size_t(nodes)]) --nodes;
    return nodes;
}

core::Seconds Runner::next_return() const {
    if (usable_nodes(clock_) > working_) return clock_;
    for (core::Seconds at : returns_)
        if (at > clock_ && usable_nodes(at) > working_) return at;
    return never;
}

void Runner::lose_node() {
    if (!model_.elastic) return;
    std::erase_if(returns_, [&](core::Seconds at) { return at <= clock_; });
    const core::Seconds back = clock_ + model_.elastic->replace;
    returns_.insert(std::upper_bound(returns_.begin(), returns_.end(), back), back);
    absent_ += model_.elastic->replace;
}

void Runner::wait_for_nodes() {
    if (!model_.elastic) return;
    while (usable_nodes(clock_) < model_.elastic->least_nodes) {
        const auto later =
            std::find_if(returns_.begin(), returns_.end(), [&](core::Seconds at) { return at > clock_; });
        core::require(later != returns_.end(), "a job waits only for nodes that come back");
        const core::Seconds duration = *later - clock_;
        pass_extra(StretchKind::wait, duration, result_.waiting);
        clock_ = *later;
    }
}

// From an interruption to the next step, which may itself be interrupted.
void Runner::recover(Cause cause) {
    while (true) {
        if (result_.failures + result_.reclaims >= options_.most_interruptions) {
            given_up_ = true;
            return;
        }
        core::Seconds restart;
        switch (cause) {
            case Cause::failure: {
                ++result_.failures;
                lose_node();
                pass_extra(StretchKind::detect, model_.failures->detect, result_.detecting);
                wait_for_nodes();
                const int before = working_;
                if (model_.elastic) working_ = usable_nodes(clock_);
                restart = model_.failures->restart;
                if (working_ != before) restart += model_.elastic->reconfigure.value_or(core::Seconds());
                break;
            }
            case Cause::reclaim: {
                ++result_.reclaims;
                const core::Seconds wait = reclaims_->wait();
                reclaims_->forget();
                pass_extra(StretchKind::wait, wait, result_.waiting);
                unbilled_ += wait;
                // All instances are other ones.
                forget_repairs();
                working_ = model_.nodes;
                restart = *model_.spot->restart;
                break;
            }
        }
        const Interruption hit = next(false);
        if (hit.at >= clock_ + restart) {
            pass_extra(StretchKind::restart, restart, result_.restarting);
            return;
        }
        pass_extra(StretchKind::restart, hit.at - clock_, result_.restarting);
        cause = hit.cause;
    }
}

void Runner::prepare() {
    while (!given_up_) {
        const Interruption hit = next(false);
        if (hit.at >= clock_ + model_.preparation()) break;
        pass_extra(StretchKind::lost, hit.at - clock_, result_.lost);
        recover(hit.cause);
    }
    pass(StretchKind::image, model_.image);
    pass(StretchKind::data, model_.data);
    pass(StretchKind::warm_up, model_.warm_up);
}

// Steps from which the training goes on.
std::int64_t Runner::steps_after(const TrainingAxis& axis, core::Seconds position, std::int64_t from,
                                 Cause cause) const {
    std::int64_t steps = std::max(from, axis.safe_steps(position));
    if (cause == Cause::reclaim && saves_on_notice()) {
        // An evaluation or checkpoint that was under way is not skipped: its step is done again with it.
        const std::int64_t done = axis.done_steps(position);
        steps = std::max(steps, axis.at(done) <= position ? done : done - 1);
    }
    return steps;
}

void Runner::train() {
    from_ = 0;
    while (!given_up_ && from_ < model_.steps) {
        const TrainingAxis axis = this->axis();
        axis_step_ = axis.step();
        const core::Seconds begin = axis.at(from_);
        std::int64_t to = model_.steps;
        // More nodes join where the state is saved anyway.
        if (working_ < model_.nodes)
            if (const core::Seconds back = next_return(); back < never)
                to = axis.next_checkpoint(begin + std::max(back - clock_, axis.step())).value_or(to);
        const core::Seconds duration = axis.at(to) - begin;
        const Interruption hit = next(true);
        if (hit.at < clock_ + duration) {
            const core::Seconds position = begin + (hit.at - clock_);
            const std::int64_t kept = steps_after(axis, position, from_, hit.cause);
            const core::Seconds useful = axis.at(kept) - begin;
            pass_training(useful, begin);
            pass_extra(StretchKind::lost, std::max(position - axis.at(kept), core::Seconds()), result_.lost);
            from_ = kept;
            if (hit.cause == Cause::reclaim && saves_on_notice())
                pass_extra(StretchKind::restart, model_.checkpoint_write, result_.restarting);
            recover(hit.cause);
            continue;
        }
        pass_training(duration, begin);
        from_ = to;
        if (to < model_.steps) reconfigure();
    }
}

// Nodes join at a checkpoint, whose write is waited for.
void Runner::reconfigure() {
    working_ = usable_nodes(clock_);
    if (model_.checkpointing)
        pass_extra(StretchKind::restart, model_.checkpointing->beside, result_.restarting);
    const core::Seconds duration = model_.elastic->reconfigure.value_or(core::Seconds());
    const Interruption hit = next(false);
    const bool is_interrupted = hit.at < clock_ + duration;
    pass_extra(StretchKind::restart, is_interrupted ? hit.at - clock_ : duration, result_.restarting);
    if (is_interrupted) recover(hit.cause);
}

bool Runner::upload() {
    while (!given_up_) {
        const Interruption hit = next(false);
        if (hit.at >= clock_ + model_.upload) break;
        pass_extra(StretchKind::lost, hit.at - clock_, result_.lost);
        recover(hit.cause);
        if (model_.checkpointing) continue;
        extra_ += trained_;
        result_.lost += trained_;
        trained_ = {};
        if (options_.stretches != nullptr)
            for (Stretch& stretch : *options_.stretches)
                if (stretch.kind == StretchKind::training) stretch.kind = StretchKind::lost;
        return false;
    }
    pass(StretchKind::upload, model_.upload);
    return true;
}

JobRun Runner::finish() {
    forget_repairs();
    const core::Seconds training = has_changed_axis_ ? trained_ : model_.axis(step_).length();
    result_.total =
        model_.acquire + model_.preparation() + training + model_.upload + model_.release + extra_;
    result_.is_finished = !given_up_;
    result_.goodput = model_.step * double(model_.steps) / result_.total;
    const Prices& prices = model_.prices;
    const core::Seconds held = result_.total - model_.acquire - unbilled_;
    // A product of doubles may lie a rounding error above a whole number of increments.
    constexpr double rounding = 1e-9;
    result_.billed = std::max(prices.minimum, held);
    if (prices.increment.value > 0)
        result_.billed = prices.increment * std::ceil(result_.billed / prices.increment * (1 - rounding));
    pass(StretchKind::keep_alive, model_.keep_alive);
    if (prices.node)
        result_.usd =
            *prices.node * (double(model_.held_nodes()) * (result_.billed + model_.keep_alive) - absent_) +
            prices.storage * result_.total;
    return result_;
}

}  // namespace

JobRun simulate_run(const JobModel& model, std::uint64_t seed, std::uint64_t number,
                    const RunOptions& options) {
    return Runner(model, seed, number, options).run();
}

}  // namespace jobs
