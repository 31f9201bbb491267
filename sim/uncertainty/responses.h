// How a prediction answers to the constants of the cost model: relative change of the step time and of the
// peak memory with each of them, by predicting again with some changed.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "cluster/topology.h"
#include "core/diagnostics_fwd.h"
#include "core/units.h"
#include "model/model_fwd.h"
#include "schedule/plan/plan.h"
#include "sim/cost/constants.h"
#include "sim/evaluate.h"

namespace sim {

// Logarithms of what a plan is predicted to take and hold; of no memory zero.
struct LogFigures {
    double step = 0, peak = 0;
    bool operator==(const LogFigures&) const = default;
};
// As quick as differences between constants allow: longer steps than `most_micro_batches` are extrapolated
// where that is exact, and Programs are not verified again. `peak` as in ResponseOptions, `lowered` as in
// EvaluateOptions. Nothing where the plan cannot be predicted.
std::optional<LogFigures> predict_logarithms(const model::ModelGraph& graph, const cluster::Cluster& cluster,
                                             const schedule::Plan& plan, const CostConstants& constants,
                                             int most_micro_batches,
                                             const std::function<core::Bytes(const Evaluation&)>& peak = {},
                                             LoweredPrograms* lowered = nullptr);

// By constant, in the order of named_constants(): d log(figure) / d(constant), zero where it does not answer.
struct ConstantResponses {
    std::vector<double> step, peak;
};

// Deviation of a constant before any measurement: a quarter of its physical range, which then covers 95 % of
// what is thought possible.
double prior_deviation(const NamedConstant& constant);

struct ResponseOptions {
    CostConstants constants = {};
    // Which figure is the peak; nothing: Evaluation::peak_memory.
    std::function<core::Bytes(const Evaluation&)> peak = {};
};

// Constants that change no price are not simulated. Long steps are extrapolated from their
// steady state. Nothing where the plan cannot be predicted.
std::optional<ConstantResponses> constant_responses(const model::ModelGraph& graph,
                                                    const cluster::Cluster& cluster,
                                                    const schedule::Plan& plan,
                                                    const ResponseOptions& options = {});

}  // namespace sim
