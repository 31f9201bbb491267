// torchrun, mpirun and sbatch: how every rank of a plan is started. By default each rank runs smexec with the
// plan, which then lacks nothing; with another command the plan's decisions are that command's business.
#include <fmt/core.h>

#include "core/diagnostics.h"
#include "interop/expression.h"
#include "interop/targets.h"

namespace interop {

namespace {

// For a POSIX shell.
std::string quoted(const std::string& text) {
    if (!text.empty() &&
        text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-=:,+@") ==
            std::string::npos)
        return text;
    std::string result = "'";
    for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return result + "'";
}

struct Launch {
    int nodes = 1, processes = 1;  // per node
    std::string command;
    bool is_smexec = true;
    bool is_local = false;
};

std::optional<Launch> prepare(Expression& e, const ExportOptions& options, const char* ranks_from) {
    const ExportSource& source = e.source;
    Launch launch;
    launch.nodes = source.cluster.nodes;
    launch.processes = processes_per_node(source);
    launch.is_local = source.cluster.instance.provider == "local";
    if (launch.processes == 0)
        e.refuse("data_parallel", std::to_string(e.plan.layout.data),
                 fmt::format("{} ranks do not fill {} nodes evenly", e.plan.layout.ranks(), launch.nodes),
                 "make data_parallel x tensor_parallel x pipeline_parallel a multiple of cluster.nodes");
    launch.is_smexec = options.command.empty();
    if (launch.is_smexec) {
        launch.command = fmt::format("smexec {} --backend {} --ranks-from {}", quoted(source.file.path),
                                     launch.is_local ? "cpu" : "cuda", ranks_from);
    } else {
        launch.command = options.command;
        e.warn("", "a launcher carries no decision of the plan: the command must apply all of it",
               "export to the command's own tool as well");
    }
    if (e.plan.collective == "ring" || e.plan.collective == "tree") {
        if (!launch.is_smexec) e.leave_collective_to_environment();
    } else if (!launch.is_smexec && e.plan.collective != "auto") {
        e.leave_collective_to_environment();
    }
    if (!e.finish()) return std::nullopt;
    return launch;
}

std::vector<std::string> notes(const Expression& e, const Launch& launch) {
    return {placement_note(e.plan.layout),
            fmt::format("ranks {} to {} run on the first node, and so on: consecutive ranks share a node", 0,
                        launch.processes - 1)};
}

// sagemaker-training's torch_distributed.py and mpi.py.
std::vector<std::string> efa_variables(const ExportSource& source) {
    if (source.cluster.instance.network_name != "efa") return {};
    std::vector<std::string> variables = {"FI_PROVIDER=efa", "RDMAV_FORK_SAFE=1"};
    if (source.cluster.instance.has_gpudirect)
        variables.insert(variables.begin(), "FI_EFA_USE_DEVICE_RDMA=1");
    return variables;
}

std::string exports(const ExportSource& source) {
    std::string lines;
    for (const std::string& variable : efa_variables(source)) lines += "export " + variable + "\n";
    return lines;
}

}  // namespace

std::optional<Export> write_torchrun(const ExportSource& source, const ExportOptions& options,
                                     core::Diagnostics& diagnostics) {
    Expression e(source, "torchrun", diagnostics);
    const auto launch = prepare(e, options, "env");
    if (!launch) return std::nullopt;
    std::string text = exports(source);
    const char* const bare = launch->is_smexec ? "--no-python " : "";
    if (launch->nodes == 1) {
        text += fmt::format("torchrun --standalone --nproc_per_node={} {}{}\n", launch->processes, bare,
                            launch->command);
    } else {
        diagnostics.warning(
            {source.file.path, 0, 0}, "cluster.nodes",
            "the plan does not name hosts: REPLACE_WITH_FIRST_HOST and NODE_RANK are placeholders",
            "run the line on every node with NODE_RANK from 0");
        text += fmt::format(
            "torchrun --nnodes={} --nproc_per_node={} --node_rank=$NODE_RANK "
            "--master_addr=REPLACE_WITH_FIRST_HOST --master_port=29500 {}{}\n",
            launch->nodes, launch->processes, bare, launch->command);
    }
    return Export{text, {}, notes(e, *launch)};
}

std::optional<Export> write_mpirun(const ExportSource& source, const ExportOptions& options,
                                   core::Diagnostics& diagnostics) {
    Expression e(source, "mpirun", diagnostics);
    const auto launch = prepare(e, options, "mpi");
    if (!launch) return std::nullopt;
    // sagemaker-training's mpi.py: -map-by slot puts consecutive ranks on a host.
    std::string text = fmt::format("mpirun -np {}", launch->nodes * launch->processes);
    if (launch->nodes > 1) {
        diagnostics.warning({source.file.path, 0, 0}, "cluster.nodes",
                            "the plan does not name hosts: REPLACE_WITH_HOST_... are placeholders",
                            "name the hosts in the order of their ranks");
        text += " --host ";
        for (int node = 0; node < launch->nodes; ++node)
            text += fmt::format("{}REPLACE_WITH_HOST_{}:{}", node ? "," : "", node, launch->processes);
    } else if (launch->is_local) {
        text += " --oversubscribe";  // ranks may be more than the cores
    }
    text += " --bind-to none --map-by slot";
    if (launch->nodes > 1) text += " --mca pml ob1 --mca btl ^openib";
    for (const std::string& variable : efa_variables(source)) text += " -x " + variable;
    return Export{text + " " + launch->command + "\n", {}, notes(e, *launch)};
}

std::optional<Export> write_slurm(const ExportSource& source, const ExportOptions& options,
                                  core::Diagnostics& diagnostics) {
    Expression e(source, "Slurm", diagnostics);
    const auto launch = prepare(e, options, "env");
    if (!launch) return std::nullopt;
    std::string text = "#!/bin/bash\n#SBATCH --job-name=smplan\n";
    text +=
        fmt::format("#SBATCH --nodes={}\n#SBATCH --ntasks-per-node={}\n", launch->nodes, launch->processes);
    if (!launch->is_local)
        text += fmt::format("#SBATCH --gpus-per-node={}\n", source.cluster.instance.devices);
    text += "#SBATCH --exclusive\n#SBATCH --distribution=block:block\n";
    text += "set -eu\n" + exports(source);
    text +=
        "export MASTER_ADDR=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)\nexport "
        "MASTER_PORT=29500\n";
    text += "srun --label " + launch->command + "\n";
    return Export{text, {}, notes(e, *launch)};
}

}  // namespace interop
