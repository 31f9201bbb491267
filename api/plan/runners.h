// What a plan may be made for (`--for`): the tools that exports write for, and our own executor. What they
// run is what their exports, and the executor's checks, do not refuse: nothing else knows.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/options.h"
#include "core/data_type.h"
#include "core/value.h"
#include "interop/exchange.h"
#include "planner/search.h"

namespace api {

struct Runner {
    std::string name;                                 // as --for takes it
    const interop::ExchangeTarget* target = nullptr;  // null: the executor on CPUs
    std::string framework;                            // whose profile prices its plans; empty: none
};
const std::vector<Runner>& runners();
// Those of --for, each once. Unknown names are diagnostics of `options`.
std::vector<Runner> read_runners(Options& options);

// A plan of this model and cluster, as exports take it.
interop::ExportSource export_source(const model::ModelGraph& graph, const cluster::Cluster& cluster,
                                    const schedule::Plan& plan);
// None: it runs the plan as it is priced.
std::vector<interop::Refusal> refusals(const Runner& runner, const interop::ExportSource& source);

// Which of all runners run a plan, and what keeps the others from it.
struct RunsIn {
    std::vector<std::string> runners;
    std::vector<std::pair<std::string, std::vector<interop::Refusal>>> others;
};
RunsIn runs_in(const model::ModelGraph& graph, const cluster::Cluster& cluster, const schedule::Plan& plan);
std::string text_of(const RunsIn& runs);
// As `runs_in` and `not_in` of an answer.
void add_to(core::Value& document, const RunsIn& runs);

// Of one cluster, a target for each way in which the runner handles precision and overlap, which may differ
// between shardings: every plan of the space that it runs belongs to one of them. `base`: attention,
// optimizer and whatever else is not searched. `precisions`: of the arithmetic; none: the base's where the
// runner has it, else another of 16 bits, else fp32. Empty where the runner has none of them.
std::vector<planner::Target> targets_for(const Runner& runner, const model::ModelGraph& graph,
                                         const cluster::Cluster& cluster, const schedule::Plan& base,
                                         const std::vector<core::DataType>& precisions);
// In which precision and with what overlap their plans are priced, in words.
std::vector<std::string> ways_of(const Runner& runner, const std::vector<planner::Target>& targets);
// Where its plans may keep activations that do not fit.
schedule::Offload offload_of(const Runner& runner, const planner::Target& target,
                             const model::ModelGraph& graph, schedule::Offload wanted);

}  // namespace api
