// What `smplan` answers: rows of plans, the account of the search, in JSON, as text and as a plan file.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "api/plan/beside.h"
#include "api/plan/plan_limits.h"
#include "api/plan/question.h"
#include "api/plan/second_look.h"
#include "core/value.h"
#include "planner/search.h"
#include "sim/uncertainty/interval.h"

namespace api {

// What runs of the installation taught beyond constants, applied to the ranked plans: the search knows the
// constants only. The intervals of each.
std::vector<sim::PredictionIntervals> judge(planner::SearchResult& result, const model::ModelGraph& graph,
                                            const std::vector<planner::Target>& targets,
                                            const sim::Posterior& posterior, int threads);

double hours_of(core::Seconds time);
// A plan under the keys of the contract.
core::Value row_of(const planner::RankedPlan& ranked, std::size_t rank, const planner::Target& target,
                   const sim::PredictionIntervals& intervals);
core::Value account_of(const planner::SearchAccount& account, planner::Objective objective);
core::Value document_of(const Request& request, const model::ModelGraph& graph,
                        const planner::SearchResult& result, const std::vector<planner::Target>& targets,
                        const std::vector<sim::PredictionIntervals>& intervals, const SecondLook& look,
                        const std::optional<CostOfLimits>& limits, const Beside& beside);
struct TableRow {
    std::string heading, label;  // of the first column
    const planner::RankedPlan* ranked;
    const cluster::Cluster* cluster;
};
std::string table_of(const std::vector<TableRow>& rows, const Request& request);
std::string text_of(const planner::SearchAccount& account);
// "llama-2-7b, 4096 tokens a sample, global batch 512", as a line.
std::string headline(const Request& request, const model::ModelGraph& graph);
std::string text_of(const Request& request, const model::ModelGraph& graph,
                    const planner::SearchResult& result, const std::vector<planner::Target>& targets,
                    const std::vector<sim::PredictionIntervals>& intervals, const SecondLook& look,
                    const Beside& beside);

// The plan file, to lie at `path`: references to other files are relative to it.
std::string plan_text(const Request& request, const model::ModelGraph& graph, const planner::RankedPlan& best,
                      const planner::Target& target, const std::string& path);

}  // namespace api
