#include "exec/cuda/make_backend.h"

#include <algorithm>
#include <cstdlib>

#include <fmt/core.h>

#include "core/errors.h"
#include "exec/cuda/device/device.h"
#include "exec/cuda/device/open.h"
#include "exec/cuda/emulation/null_machine.h"
#include "exec/runtime/rank_executor.h"

namespace exec::cuda {

RunPlan plan_run(const BackendRequest& request, const Machine& machine, const BackendSettings& settings) {
    const int rank = request.communicator.rank();
    CudaBackend planner(request.program, request.graphs, request.options, rank, make_null_machine(machine),
                        make_null_exchange(), nullptr, settings, request.activities);
    RankExecutor executor(request.program, request.graphs, request.inputs, request.options, rank, planner,
                          request.stage_plans);
    std::vector<InstructionTime> none;
    for (const std::int64_t step : {0, 1}) executor.step(step, none);
    planner.begin_step(2);
    RunPlan plan = planner.planned();
    const bool may_not_run_at_once = settings.captures_steps || settings.ranks_per_device > 1;
    if (may_not_run_at_once && plan.messages.holds_in_list_order && request.program.plan.layout.ranks() > 1) {
        const schedule::RankProgram& list = request.program.classes[request.program.class_of_rank[rank]];
        const std::vector<std::vector<std::uint32_t>> in_order =
            waits_in_list_order(list, plan.messages.has_channels);
        for (std::size_t i = 0; i < in_order.size(); ++i) {
            std::vector<std::uint32_t>& waits = plan.arena.waits[i];
            waits.insert(waits.end(), in_order[i].begin(), in_order[i].end());
            std::sort(waits.begin(), waits.end());
            waits.erase(std::unique(waits.begin(), waits.end()), waits.end());
        }
    }
    return plan;
}

namespace {

// CUDA loads a kernel when it is first launched, and that may wait until the device is idle (CUDA programming
// guide, "Lazy Loading"): for ever, when what runs there is a kernel of NCCL that waits for a rank whose own
// kernels wait to be loaded. So a step without exchange comes first; what libraries allocate is allocated in
// it too.
void rehearse(const BackendRequest& request, const std::shared_ptr<Machine>& machine,
              const std::shared_ptr<const RunPlan>& plan, BackendSettings settings) {
    const int rank = request.communicator.rank();
    settings.rehearses = true;
    CudaBackend backend(request.program, request.graphs, request.options, rank, machine, make_null_exchange(),
                        plan, settings, request.activities);
    RankExecutor executor(request.program, request.graphs, request.inputs, request.options, rank, backend,
                          request.stage_plans);
    std::vector<InstructionTime> none;
    executor.step(0, none);
}

}  // namespace

std::unique_ptr<Backend> make_backend(const BackendRequest& request, std::shared_ptr<Machine> machine,
                                      std::shared_ptr<Exchange> exchange, const BackendSettings& settings) {
    RunPlan planned = plan_run(request, *machine, settings);
    planned.remarks = machine->keep_choices();
    auto plan = std::make_shared<const RunPlan>(std::move(planned));
    if (request.program.plan.layout.ranks() > 1 && machine->loads_kernels_late())
        rehearse(request, machine, plan, settings);
    return std::make_unique<CudaBackend>(request.program, request.graphs, request.options,
                                         request.communicator.rank(), std::move(machine), std::move(exchange),
                                         std::move(plan), settings, request.activities);
}

namespace {

// As torchrun, Open MPI and Slurm number the ranks of a host; else ranks are on hosts as on devices, in
// order.
int rank_on_host(int rank) {
    for (const char* name : {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"})
        if (const char* text = std::getenv(name)) return std::atoi(text);
    return rank;
}
int ranks_on_host(int ranks) {
    for (const char* name : {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"})
        if (const char* text = std::getenv(name)) return std::atoi(text);
    return ranks;
}

}  // namespace

int ranks_of_a_device(int ranks_on_host, int devices) {
    return devices < 1 ? 1 : std::max(1, (ranks_on_host + devices - 1) / devices);
}

RankDevice open_rank(Communicator& communicator, bool ranks_are_processes, core::Seconds time_limit,
                     bool measures_products) {
    const int rank = communicator.rank(), devices = device_count();
    if (devices == 0) throw core::MachineError(describe(probe_device()));
    const int local = ranks_are_processes ? rank_on_host(rank) : rank;
    if (!ranks_are_processes && communicator.size() > devices)
        throw core::MachineError(
            fmt::format("{} ranks as threads need {} GPUs, and here are {}: start the ranks as processes",
                        communicator.size(), communicator.size(), devices));
    // NCCL refuses two ranks on one GPU of one host, and takes the host from this variable (src/misc/utils.cc
    // of 2.28): with names of their own they exchange over sockets, as ranks of several hosts do.
    if (local >= devices) setenv("NCCL_HOSTID", fmt::format("rank-{}", rank).c_str(), 0);
    RankDevice result;
    result.shares_device = local >= devices;
    result.ranks_per_device =
        ranks_are_processes ? ranks_of_a_device(ranks_on_host(communicator.size()), devices) : 1;
    result.machine = open_machine(local % devices, measures_products);
    result.exchange = open_exchange(communicator, result.machine, time_limit * result.ranks_per_device);
    return result;
}

BackendMaker gpu_backend(const BackendSettings& settings, bool ranks_are_processes) {
    return [settings, ranks_are_processes](const BackendRequest& request) {
        RankDevice device = open_rank(request.communicator, ranks_are_processes, request.options.time_limit,
                                      settings.measures_products);
        BackendSettings own = settings;
        own.ranks_per_device = device.ranks_per_device;
        return make_backend(request, std::move(device.machine), std::move(device.exchange), own);
    };
}

}  // namespace exec::cuda
