// What operators are timed in, and how their times become a profile's entries: the same for every backend.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <vector>

#include "cluster/device.h"
#include "model/model_fwd.h"
#include "model/operators/cost_context.h"
#include "schedule/program/program.h"

namespace exec {

// The model as one stage in two micro-batches, of which the second adds to gradients that are there; nothing
// sharded, nothing recomputed. Sequences are cut as the plan cuts them.
schedule::Program profiled_program(const schedule::Plan& plan, int data, int tensor,
                                   const model::ModelGraph& graph);

// An operator in one phase, of one segment of the sequence: the first half of a sequence has fewer keys than
// the second, and both fewer rows than the whole.
struct OperatorPass {
    std::int32_t op = 0, segment = 0;
    model::Phase phase = model::Phase::forward;
    auto operator<=>(const OperatorPass&) const = default;
};
using OperatorTimes = std::map<OperatorPass, double>;  // seconds

// Operators of one signature are one entry: the mean of theirs. The program is what was timed.
std::vector<cluster::MeasuredOperator> by_signature(const schedule::Program& program,
                                                    const model::ModelGraph& graph,
                                                    const OperatorTimes& times);

}  // namespace exec
