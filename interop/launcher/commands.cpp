// torchrun, mpirun and sbatch: how every rank of a plan is started. By default each rank runs smexec with the
// plan, which then lacks nothing; with another command the plan's decisions are that command's business.
#include <fmt/core.h>

#include "core/diagnostics.h"
#include "interop/launcher/launch.h"
#include "interop/targets.h"

namespace interop {

std::optional<Export> write_torchrun(const ExportSource& source, const ExportOptions& options,
                                     core::Diagnostics& diagnostics) {
    Expression e(source, "torchrun", diagnostics);
    const auto launch = prepare_launch(e, options, "env");
    if (!launch) return std::nullopt;
    std::string text = efa_exports(source);
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
    return Export{text, {}, launch_notes(e, *launch)};
}

std::optional<Export> write_mpirun(const ExportSource& source, const ExportOptions& options,
                                   core::Diagnostics& diagnostics) {
    Expression e(source, "mpirun", diagnostics);
    const auto launch = prepare_launch(e, options, "mpi");
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
    return Export{text + " " + launch->command + "\n", {}, launch_notes(e, *launch)};
}

std::optional<Export> write_slurm(const ExportSource& source, const ExportOptions& options,
                                  core::Diagnostics& diagnostics) {
    Expression e(source, "Slurm", diagnostics);
    const auto launch = prepare_launch(e, options, "env");
    if (!launch) return std::nullopt;
    std::string text = "#!/bin/bash\n#SBATCH --job-name=smplan\n";
    text +=
        fmt::format("#SBATCH --nodes={}\n#SBATCH --ntasks-per-node={}\n", launch->nodes, launch->processes);
    if (!launch->is_local)
        text += fmt::format("#SBATCH --gpus-per-node={}\n", source.cluster.instance.devices);
    text += "#SBATCH --exclusive\n#SBATCH --distribution=block:block\n";
    text += "set -eu\n" + efa_exports(source);
    text +=
        "export MASTER_ADDR=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)\nexport "
        "MASTER_PORT=29500\n";
    text += "srun --label " + launch->command + "\n";
    return Export{text, {}, launch_notes(e, *launch)};
}

}  // namespace interop
