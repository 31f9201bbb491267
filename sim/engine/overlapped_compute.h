// What collectives of the data stream cost the compute that runs beside them.
#pragma once

#include "cluster/device.h"
#include "schedule/program/program.h"
#include "sim/cost/collective/collective.h"
#include "sim/engine/simulate.h"

namespace sim {

bool has_data_collectives(const schedule::Program& program);

// What a compute instruction loses to collectives beside it, by what they carry.
struct OverlapLoss {
    core::Seconds to_gathers, to_reductions;  // of parameters; of everything else
};
using OverlapLosses = std::vector<std::vector<OverlapLoss>>;  // by class and instruction

// Compute that runs beside collectives of the data stream loses `loss` of the time they share, known from a
// first simulation of the classes: kernels of collectives occupy multiprocessors and memory bandwidth.
// Collectives that occupy fewer multiprocessors than NCCL's rings cost less.
// Returns what is added to `durations`.
OverlapLosses slow_overlapped_compute(const schedule::Program& program, const Simulation& simulation,
                                      double loss, const cluster::DeviceSpec& device,
                                      CommunicationCost& costs, Durations& durations);

}  // namespace sim
