// Prices of every instruction of a Program on a cluster: what the clock of simulate.h runs on.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cluster/topology.h"
#include "core/diagnostics_fwd.h"
#include "model/model_fwd.h"
#include "schedule/program/program.h"
#include "sim/cost/collective/collective.h"
#include "sim/cost/compute.h"
#include "sim/cost/host_update.h"
#include "sim/engine/simulate.h"

namespace sim {

struct PricedProgram {
    Durations durations;
    // Part of each duration in which the device waits for the host to dispatch kernels: the amount by which
    // dispatch exceeds device time, and blocking host work.
    std::vector<std::vector<core::Seconds>> host;
    std::vector<core::Flops> recompute_flops;  // per class, one rank, one step
};

// The two cost models of one evaluation; they refer to graph, cluster and plan, which must outlive them.
struct CostModels {
    ComputeCost compute;
    CommunicationCost communication;
    // Where the plan's schedule cuts sequences; then `compute` is of the whole.
    std::vector<ComputeCost> by_segment;
    HostUpdate host_update = {};
    bool counts_hosts = true;  // false: they dispatch in no time
    const ComputeCost& of_segment(int segment) const {
        return by_segment.empty() ? compute : by_segment[segment];
    }
    // What belongs to no micro-batch (gradients summed over the tensor group) is of the whole.
    const ComputeCost& of(const schedule::Program& program, const schedule::Instruction& instruction) const {
        return instruction.micro_batch < 0 ? compute
                                           : of_segment(program.segment_of(instruction.micro_batch));
    }
};
// `known`: of plans of one base on this cluster; with them no links are told. `first_like`: of each operator
// the first that costs the same (model::Repetition::first_operators); null: none is known to. `graphs`: of
// what passes at once; null: they are made.
std::optional<CostModels> make_cost_models(const model::ModelGraph& graph, const cluster::Cluster& cluster,
                                           const schedule::Plan& plan, core::Diagnostics& diagnostics,
                                           const CostConstants& constants = {},
                                           KnownCandidates* known = nullptr,
                                           const std::vector<std::int32_t>* first_like = nullptr,
                                           const model::SegmentGraphs* graphs = nullptr);

PricedProgram price(const schedule::Program& program, CostModels& costs);

}  // namespace sim
