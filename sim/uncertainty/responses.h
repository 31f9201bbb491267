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

// Constants that change nothing together are not tried one by one. Long steps are extrapolated from their
// steady state. Nothing where the plan cannot be predicted.
std::optional<ConstantResponses> constant_responses(const model::ModelGraph& graph,
                                                    const cluster::Cluster& cluster,
                                                    const schedule::Plan& plan,
                                                    const ResponseOptions& options = {});

}  // namespace sim
