// When nodes fail and instances are reclaimed, drawn ahead of the clock of one run.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <vector>

#include "core/random.h"
#include "core/units.h"
#include "jobs/job.h"

namespace jobs {

// Failures of any of `nodes` nodes, which all fail independently by one law. Of the nodes that were there at
// the start only the next failure is drawn (order statistics by exponential spacings: A. Renyi, 1953), so
// that a run costs its failures, not its nodes.
class FailureSource {
public:
    FailureSource(const FailureRule& rule, int nodes, std::uint64_t seed);

    // The first failure after `now` among `working` of the nodes. Failures up to `now` have been dealt with:
    // their nodes are new at `now`.
    core::Seconds next_after(core::Seconds now, int working);

private:
    double next_of_all(double now);  // Weibull: also among nodes that do not work
    double life();                   // of a new node
    void draw_cohort();              // the next failure of the nodes of the start

    core::Random random_;
    Law law_;
    double scale_, shape_, age_;  // seconds, none, seconds
    int nodes_, left_;            // in all; of the start that have not failed
    double hazard_ = 0;           // cumulative, of the nodes of the start
    double next_ = 0;             // of the nodes of the start
    double found_ = 0;            // the last answer, which holds until it is past ...
    int working_ = 0;             // ... for so many nodes
    std::priority_queue<double, std::vector<double>, std::greater<>> replaced_;
};

// Reclaims of any of the job's instances: memoryless, as no source says more than a rate.
class ReclaimSource {
public:
    ReclaimSource(const SpotRule& rule, std::uint64_t seed);

    // The first reclaim after `now` while so many instances are held.
    core::Seconds next_after(core::Seconds now, int nodes);
    void forget() { next_ = 0; }  // other instances from here on
    core::Seconds wait();         // until there is capacity again

private:
    core::Random random_;
    double node_mean_, wait_;
    WaitLaw wait_law_;
    double next_ = 0;
};

// Scale of a Weibull law with that mean: mean / Gamma(1 + 1 / shape).
core::Seconds weibull_scale(core::Seconds mean, double shape);

}  // namespace jobs
