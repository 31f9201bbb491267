// A rank's CUDA backend, planned and ready.
#pragma once

#include <memory>

#include "exec/backend.h"
#include "exec/cuda/backend.h"

namespace exec::cuda {

// Performs two steps on a machine that does nothing to plan memory, edges and staging.
RunPlan plan_run(const BackendRequest& request, const Machine& machine, const BackendSettings& settings = {});

std::unique_ptr<Backend> make_backend(const BackendRequest& request, std::shared_ptr<Machine> machine,
                                      std::shared_ptr<Exchange> exchange,
                                      const BackendSettings& settings = {});

// The GPU of this rank and its exchange with the others; ranks beyond the GPUs of a host share them
// (processes only).
struct RankDevice {
    std::shared_ptr<Machine> machine;
    std::shared_ptr<Exchange> exchange;
    bool shares_device = false;
    int ranks_per_device = 1;
};
// How many ranks of a host the busiest of its devices has. Their kernels take turns, those that wait for
// other ranks too: limits of time are longer by this factor.
int ranks_of_a_device(int ranks_on_host, int devices);
RankDevice open_rank(Communicator& communicator, bool ranks_are_processes, core::Seconds time_limit,
                     bool measures_products = false);

// The same on a GPU of this host: rank r of those on this host takes device r, modulo their number.
// `ranks_are_processes`: several may then share a device, for functional tests, each pretending to NCCL that
// it has a host of its own.
BackendMaker gpu_backend(const BackendSettings& settings, bool ranks_are_processes);

}  // namespace exec::cuda
