// A model graph on one cluster as a placement problem: the simulator's own prices of operators and transfers,
// the memory that training keeps.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cluster/topology.h"
#include "core/diagnostics_fwd.h"
#include "model/model_fwd.h"
#include "partition/placement.h"
#include "schedule/plan/plan.h"

namespace partition {

enum class Granularity {
    unit,    // what a plan's pipeline may place: layers; the only one that smsim and smexec can run
    module,  // an operator with parameters is a leaf and never split; one without goes with its parent's leaf
             // before it (SMP v1.13: it runs on its parent's rank)
    operation  // every operator by itself (TensorFlow's view)
};

// What a tied parameter asks for: one device for all that use it, or a copy on each stage with gradients
// summed (what our pipelines do).
enum class TiedParameters { together, copied };

struct ModelPlacement {
    PlacementProblem problem;  // node = group of operators at the granularity; an item may hold several
    std::vector<std::vector<int>> operators;  // of each node, ascending
    std::vector<std::string> assumptions;
};

// Loads are steady-state seconds per micro-batch: forward and backward of what a stage holds, and its tensors
// sent forward and gradients back over one link of the instance (several nodes: of the network). Memory:
// weights, gradients and optimizer state, and what backward needs of every micro-batch in flight. `plan`
// gives micro-batch, number of micro-batches, precision, optimizer and recomputation; its degrees are not
// used. `devices` stages are placed.
std::optional<ModelPlacement> model_placement(const model::ModelGraph& graph, const cluster::Cluster& cluster,
                                              const schedule::Plan& plan, int devices,
                                              Granularity granularity, TiedParameters tied,
                                              core::Diagnostics& diagnostics);

// First unit of each stage when every stage is a run of whole units, in order; empty otherwise.
std::vector<std::int32_t> first_units_of(const model::ModelGraph& graph, const ModelPlacement& placement,
                                         const std::vector<PlacedStage>& stages);

}  // namespace partition
