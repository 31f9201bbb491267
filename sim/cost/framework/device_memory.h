// What a training process on an accelerator holds beside the buffers of its Program: kernels' workspace,
// copies that frameworks make, communicators, the context, and what its caching allocator keeps. The executor
// on CPU ranks has none of it.
#pragma once

#include <vector>

#include "cluster/topology.h"
#include "core/units.h"
#include "model/model_fwd.h"
#include "schedule/program/program.h"
#include "sim/cost/framework/framework_memory.h"
#include "sim/engine/memory_sweep.h"

namespace sim {

// Of every class. Workspace by pass; outputs of stages where the framework keeps them until their backward
// pass; copies of gradients: buckets of data-parallel wrappers, accumulators of another type, temporaries of
// the optimizer step. `repetition` as in schedule::activation_footprints.
std::vector<ExtraMemory> extra_memory(const schedule::Program& program, const model::ModelGraph& graph,
                                      const model::SegmentGraphs& graphs, const FrameworkMemory& framework,
                                      model::Repetition* repetition);

// NCCL's buffers of one communicator, by the number of its channels: over NVLink as the device profile says;
// between nodes two channels a network card that the group's ranks on a node have between them. Zero for a
// group of one.
core::Bytes communicator_memory(const cluster::Cluster& cluster, const std::vector<int>& ranks);

// Outside the allocator: context, communicators of the groups the class uses (a pair for each pipeline
// neighbour) and of those the framework makes besides.
core::Bytes outside_memory(const schedule::Program& program, int class_index, const cluster::Cluster& cluster,
                           const FrameworkMemory& framework);
// The least of it for a plan's rank at one pipeline coordinate, without a Program: what a search may count
// on.
core::Bytes least_outside_memory(const schedule::Plan& plan, int pipeline, const cluster::Cluster& cluster);

}  // namespace sim
