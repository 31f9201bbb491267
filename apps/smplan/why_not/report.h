// What `smplan why-not` says, as text and JSON.
#pragma once

#include <optional>
#include <string>

#include "cluster/topology.h"
#include "core/diagnostics_fwd.h"
#include "core/value.h"
#include "model/model_fwd.h"
#include "planner/search.h"
#include "planner/why_not.h"
#include "sim/uncertainty/interval.h"

namespace apps {

// A plan that was refused has no figures, only what is said against it.
struct WhyNotAnswer {
    std::string plan_name;  // its file
    planner::Target target;
    int global_batch = 1;
    std::optional<planner::RankedPlan> plan, best;
    std::optional<sim::PredictionIntervals> plan_intervals, best_intervals;
    std::optional<planner::WhyNot> why;  // of a plan and a best one
    planner::SearchAccount account;
    std::string runner;  // of --for; empty: plans of any kind
};

std::string text_of(const WhyNotAnswer& answer, const model::ModelGraph& graph);
// `refused`: the errors of a plan without figures.
core::Value document_of(const WhyNotAnswer& answer, const model::ModelGraph& graph,
                        const core::Diagnostics& refused);

}  // namespace apps
