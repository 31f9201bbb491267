// What operators are timed in, and how their times become a profile's entries: the same for every backend.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "cluster/device.h"
#include "model/model_fwd.h"
#include "model/operators/cost_context.h"
#include "schedule/program/program.h"

namespace exec {

// The model as one stage in two micro-batches, of which the second adds to gradients that are there; nothing
// sharded, nothing recomputed.
schedule::Program profiled_program(const schedule::Plan& plan, int data, int tensor,
                                   const model::ModelGraph& graph);

// Operators of one signature are one entry: the mean of theirs. `times`: seconds by operator and phase.
std::vector<cluster::MeasuredOperator> by_signature(
    const model::ModelGraph& graph, const model::CostContext& context,
    const std::map<std::pair<std::int32_t, int>, double>& times);

}  // namespace exec
