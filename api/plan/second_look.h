// What to weigh beside the ranking: plans as good within the error, plans nearly as good that differ in what
// else matters, and how likely the first runs out of memory.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "api/plan/question.h"
#include "core/value.h"
#include "planner/search.h"
#include "sim/uncertainty/interval.h"

namespace api {

struct NearPlan {
    std::vector<std::string> merits;  // "least memory", "fewest nodes", "simplest"
    planner::RankedPlan plan;
    double worse_pct = 0;  // by the objective
    double chance_of_running_out = 0;
};

struct SecondLook {
    // Of the ranked plans on the first's instance type those whose step is no longer than the first's within
    // the error of a comparison; the first is among them. The largest of these errors, 80 %.
    std::vector<std::size_t> same;
    double error_pct = 0;
    // Mean over sampled constants by how much a ranked plan is slower than what is then the fastest of them.
    // Empty where they are on several instance types, whose errors differ.
    std::vector<double> regret_pct;
    bool is_cost = false;  // the objective
    // Of each ranked plan.
    std::vector<double> chance_of_running_out;
    std::vector<NearPlan> near_ties;
    // Of the plans simulated the fastest that is unlikely to run out of memory, where the first is not.
    std::optional<NearPlan> safer;
    double advised_margin_pct = 0;  // of which it is such a plan
    core::Bytes memory;             // of the first's device, with what a margin keeps free
};

// `result` has plans, and `intervals` are theirs.
SecondLook second_look(const Request& request, const model::ModelGraph& graph,
                       const planner::SearchResult& result, const std::vector<planner::Target>& targets,
                       const std::vector<sim::PredictionIntervals>& intervals);

// Adds `near_ties` and `memory_risk` to the answer, and to each row of its plans `chance_of_running_out`,
// `expected_regret_pct` and `same_within_error`.
void add_to(core::Value& document, const SecondLook& look, const std::vector<planner::Target>& targets);
std::string text_of(const SecondLook& look, const planner::SearchResult& result,
                    const std::vector<planner::Target>& targets);

}  // namespace api
