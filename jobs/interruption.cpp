#include "jobs/interruption.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/errors.h"

namespace jobs {

namespace {

// Mean 1. The draw is in (0, 1], so that its logarithm is finite.
double exponential(core::Random& random) { return -std::log(1.0 - random.uniform()); }

}  // namespace

core::Seconds weibull_scale(core::Seconds mean, double shape) { return mean / std::tgamma(1 + 1 / shape); }

FailureSource::FailureSource(const FailureRule& rule, int nodes, std::uint64_t seed)
    : random_(seed),
      law_(rule.law),
      scale_(rule.law == Law::weibull ? weibull_scale(rule.node_mtbf, rule.shape).value
                                      : rule.node_mtbf.value),
      shape_(rule.shape),
      age_(rule.age.value),
      nodes_(nodes),
      left_(nodes) {
    core::require(nodes > 0 && scale_ > 0 && shape_ > 0, "nodes fail after some time");
    switch (law_) {
        case Law::exponential: return;
        case Law::weibull:
            hazard_ = std::pow(age_ / scale_, shape_);
            draw_cohort();
            return;
    }
    throw core::InternalError("broken promise: every law of failures can be drawn");
}

double FailureSource::life() { return scale_ * std::pow(exponential(random_), 1 / shape_); }

void FailureSource::draw_cohort() {
    if (left_ == 0) {
        next_ = std::numeric_limits<double>::infinity();
        return;
    }
    hazard_ += exponential(random_) / double(left_);
    next_ = scale_ * std::pow(hazard_, 1 / shape_) - age_;
}

double FailureSource::next_of_all(double now) {
    while (next_ <= now) {
        replaced_.push(now + life());
        --left_;
        draw_cohort();
    }
    while (!replaced_.empty() && replaced_.top() <= now) {
        replaced_.pop();
        replaced_.push(now + life());
    }
    return replaced_.empty() ? next_ : std::min(next_, replaced_.top());
}

core::Seconds FailureSource::next_after(core::Seconds now, int working) {
    if (working == working_ && found_ > now.value) return core::seconds(found_);
    working_ = working;
    if (law_ == Law::exponential) {
        found_ = now.value + scale_ / double(working) * exponential(random_);
        return core::seconds(found_);
    }
    found_ = next_of_all(now.value);
    // A failure is as likely to meet a node that does not work as there are of them.
    while (working < nodes_ && random_.uniform() * nodes_ >= working) found_ = next_of_all(found_);
    return core::seconds(found_);
}

ReclaimSource::ReclaimSource(const SpotRule& rule, std::uint64_t seed)
    : random_(seed), node_mean_(rule.node_mean_time.value), wait_(rule.wait.value), wait_law_(rule.wait_law) {
    core::require(node_mean_ > 0, "instances are reclaimed after some time");
}

core::Seconds ReclaimSource::next_after(core::Seconds now, int nodes) {
    if (next_ <= now.value) next_ = now.value + node_mean_ / double(nodes) * exponential(random_);
    return core::seconds(next_);
}

core::Seconds ReclaimSource::wait() {
    switch (wait_law_) {
        case WaitLaw::fixed: return core::seconds(wait_);
        case WaitLaw::exponential: return core::seconds(wait_ * exponential(random_));
    }
    throw core::InternalError("broken promise: every law of waits can be drawn");
}

}  // namespace jobs
