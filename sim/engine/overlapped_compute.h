// What collectives cost the compute that runs beside them: those of the data stream, and those of products in
// pieces.
#pragma once

#include "cluster/device.h"
#include "schedule/program/program.h"
#include "sim/cost/collective/collective.h"
#include "sim/engine/simulate.h"

namespace sim {

bool has_collectives_beside_compute(const schedule::Program& program);

// What a compute instruction loses to collectives beside it, by what they carry.
struct OverlapLoss {
    core::Seconds to_gathers, to_reductions;  // of the data stream: of parameters, of everything else
    core::Seconds to_tensor;                  // of pieces of products
    core::Seconds all() const { return to_gathers + to_reductions + to_tensor; }
};
using OverlapLosses = std::vector<std::vector<OverlapLoss>>;  // by class and instruction

// Compute that runs beside such collectives loses `loss` of the time they share, known from a
// first simulation of the classes: kernels of collectives occupy multiprocessors and memory bandwidth.
// Collectives that occupy fewer multiprocessors than NCCL's rings cost less.
// Returns what is added to `durations`.
OverlapLosses slow_overlapped_compute(const schedule::Program& program, const Simulation& simulation,
                                      double loss, const cluster::DeviceSpec& device,
                                      CommunicationCost& costs, Durations& durations);

}  // namespace sim
