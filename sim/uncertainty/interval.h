// 80 % intervals of an evaluation, and what would narrow them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cluster/topology.h"
#include "core/units.h"
#include "core/value.h"
#include "model/model_fwd.h"
#include "schedule/plan/plan.h"
#include "sim/evaluate.h"
#include "sim/uncertainty/posterior.h"
#include "sim/uncertainty/responses.h"

namespace sim {

template <class T>
struct Interval {
    T low, high;
};

// A part of the variance of log(step time) that knowing one thing would remove.
struct VarianceShare {
    std::string name;     // of the constant, or "installation", "novelty", "run"
    std::string meaning;  // in words
    double share = 0;     // of the variance
    bool is_constant = false;
};

struct PredictionIntervals {
    Interval<core::Seconds> step;
    Interval<core::Bytes> peak;
    double half_width = 0;  // of the step's, in logarithms
    // Largest first. Constants overlap where measurements tell only combinations of them, so shares need not
    // sum to one. Empty unless asked for, like the next two.
    std::vector<VarianceShare> shares;
    // With three runs of this installation, such as this one, given to `smsim calibrate`.
    std::optional<Interval<core::Seconds>> after_three_runs;
    std::vector<std::string> unlike;  // everything measured: "device sm90a", "framework ..."
    // How log(step) answers to what two plans have in common: to the same few joint moves of the constants,
    // by a deviation each (empty when explained), and to the parameters.
    std::vector<double> moved;
    std::vector<double> response;  // to effects of the site; zero for the constants
};

struct IntervalOptions {
    // Responses to single constants, some 25 more predictions; else their variance is estimated from four.
    bool explains = false;
};

// `evaluation` must be of the same plan, made with posterior.cost_constants(), its site effects applied.
PredictionIntervals intervals_of(const Evaluation& evaluation, const model::ModelGraph& graph,
                                 const cluster::Cluster& cluster, const schedule::Plan& plan,
                                 const Posterior& posterior, const IntervalOptions& options = {});

// Of a prediction whose response to all parameters is known: deviation of log(step time), without and with
// what is the run's own.
double step_deviation(const std::vector<double>& response, const RunFacts& facts, const Posterior& posterior);

// Deviation of log(step of one plan / step of another) on the same machines: constants move both, and each
// run has what is its own.
double difference_deviation(const PredictionIntervals& one, const PredictionIntervals& other,
                            const Posterior& posterior);
// That a prediction of `peak` with the interval's error is exceeded by more than what there is: a share.
double chance_of_exceeding(core::Bytes available, core::Bytes peak, const PredictionIntervals& intervals);

// Adds step_time_s_80, peak_memory_gib_80, usd_per_million_samples_80 and, when explained, `uncertainty`.
void add_to(core::Value& document, const PredictionIntervals& intervals, const Evaluation& evaluation);
// What widens the intervals most, and what would narrow them.
std::string text_of(const PredictionIntervals& intervals);

}  // namespace sim
