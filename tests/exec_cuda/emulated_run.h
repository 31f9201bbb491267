// Runs, and plans of them, on emulated GPUs.
#pragma once

#include "exec/cuda/make_backend.h"
#include "exec/runtime/rank_run.h"
#include "exec/transport/no_peers.h"
#include "tests/exec/tiny.h"
#include "tests/exec_cuda/emulated_machine.h"

namespace emulated {

// Every rank on `machine`.
inline exec::BackendMaker backend_on(std::shared_ptr<Emulated> machine) {
    return [machine](const exec::BackendRequest& request) {
        return exec::cuda::make_backend(request, machine, std::make_shared<Messages>(request.communicator),
                                        {});
    };
}

// Every rank on a machine of its own. `loads_late`: a kernel is loaded when it is first launched, as CUDA may
// do.
inline exec::BackendMaker backend(const exec::cuda::BackendSettings& settings = {}, bool loads_late = false) {
    return [settings, loads_late](const exec::BackendRequest& request) {
        auto machine = std::make_shared<Emulated>();
        machine->loads_late = loads_late;
        return exec::cuda::make_backend(request, std::move(machine),
                                        std::make_shared<Messages>(request.communicator), settings);
    };
}

inline exec::cuda::RunPlan planned(const schedule::Plan& plan, const model::ModelGraph& graph, int rank,
                                   const exec::cuda::BackendSettings& settings = {}) {
    exec::NoPeers communicator(rank, plan.layout.ranks());
    const schedule::Program program = tiny::program_of(plan, graph);
    const exec::RunPreparation preparation = exec::prepare_run(program, graph);
    const exec::InputReader inputs(graph, tiny::data_of(graph));
    const exec::RunOptions options;
    Emulated machine;
    return exec::cuda::plan_run(
        {program, graph, inputs, options, communicator, preparation.graphs, preparation.stage_plans,
         preparation
             .activities[static_cast<std::size_t>(program.class_of_rank[static_cast<std::size_t>(rank)])]},
        machine, settings);
}

}  // namespace emulated
