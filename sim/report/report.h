// An evaluation in words for people, and as rows for tables.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cluster/topology.h"
#include "core/diagnostics.h"
#include "core/display/text_table.h"
#include "core/value.h"
#include "model/model_fwd.h"
#include "schedule/plan/plan.h"
#include "sim/evaluate.h"
#include "sim/uncertainty/interval.h"

namespace sim {

// Effective configuration, step time and throughput, cost, memory per rank class, breakdown bars,
// assumptions; intervals where they are given.
std::string text_report(const Evaluation& evaluation, const model::ModelGraph& graph,
                        const cluster::Cluster& cluster, const schedule::Plan& plan,
                        const std::string& question = "", const PredictionIntervals* intervals = nullptr);

// One point of a sweep: what was set, and the evaluation or why there is none.
struct SweepRow {
    std::vector<std::pair<std::string, std::string>> set;  // key, value as given
    core::Value result;  // to_value(Evaluation); null when the point is not valid
    core::Diagnostics diagnostics;
};
std::string sweep_text(const std::vector<SweepRow>& rows, std::size_t width = core::usual_width);
// Header: the swept keys, the figures of the contract, error. One line a row.
std::string sweep_csv(const std::vector<SweepRow>& rows);
core::Value sweep_value(const std::vector<SweepRow>& rows);

}  // namespace sim
