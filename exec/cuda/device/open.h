// The real machine and the real exchange. Plain C++: without CUDA both throw core::MachineError.
#pragma once

#include <memory>

#include "exec/cuda/machine.h"
#include "exec/transport/communicator.h"

namespace exec::cuda {

// Streams and library handles on that device, which becomes the calling thread's. `measures_products`: the
// fastest algorithm of each matrix product is looked for.
std::shared_ptr<Machine> open_machine(int device, bool measures_products = false);

// NCCL. `communicator` carries the ids of groups, and stays. Waiting for a group longer than the limit is a
// core::MachineError.
std::shared_ptr<Exchange> open_exchange(Communicator& communicator, const std::shared_ptr<Machine>& machine,
                                        core::Seconds time_limit);

}  // namespace exec::cuda
