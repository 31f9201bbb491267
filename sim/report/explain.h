// Where the time of a prediction goes: by kind of operator, by stream and link, exposed or hidden; and what
// it rests on: constants and profile figures with their sources, and how the step moves with each of them.
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

namespace sim {

// Device time of the critical rank's operators of one kind.
struct OperatorTime {
    std::string kind;
    core::Seconds forward, backward, recompute;
    std::int64_t operators = 0;  // performed
    core::Seconds sum() const { return forward + backward + recompute; }
};

// Communications of one purpose over one kind of link. `busy` = data moves; what compute of the same rank
// does not cover of it is `exposed`; `waiting` = ready, but a partner was not there yet. Two that overlap
// each other are both counted.
struct CommunicationShare {
    std::string stream, what, links;  // "data", "all_gather parameter over shard", "between nodes"
    std::int64_t count = 0;
    core::Bytes bytes;
    core::Seconds busy, exposed, waiting;
};

// A constant of the cost model, or a figure of the hardware profile.
struct Influence {
    std::string name;
    double value = 0;  // constants only
    std::string meaning, source, date;
    std::string confidence;  // "assumed", "derived", "measured", "vendor"; of constants "fitted" or "set"
    double step_change = 0;  // relative change of the step when it is 10 % larger
    double peak_change = 0;  // ... of the peak memory
};

struct Explanation {
    int rank = 0;  // the critical one
    core::Seconds step, compute_busy, update, host, bubble;
    std::vector<OperatorTime> operators;             // the longest first
    std::vector<CommunicationShare> communications;  // the most exposed first
    std::vector<Influence> constants,
        figures;  // the most influential first; those without influence last, in their own order
};

struct ExplainOptions {
    CostConstants constants = {};
    double step = 0.1;  // relative change of a figure
    int threads = 0;    // 0 = one per core
    // False: without `constants` and `figures`, which take a prediction each.
    bool finds_influences = true;
};

// `evaluation` must have been made with keeps_timeline, for the same plan and constants. Sensitivities are
// computed by predicting again with the one figure changed.
Explanation explain(const Evaluation& evaluation, const model::ModelGraph& graph,
                    const cluster::Cluster& cluster, const schedule::Plan& plan,
                    const ExplainOptions& options = {});

std::string text_of(const Explanation& explanation);
core::Value to_value(const Explanation& explanation);

}  // namespace sim
