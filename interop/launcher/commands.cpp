// torchrun, mpirun and sbatch: how every rank of a plan is started. By default each rank runs smexec with the
// plan, which then lacks nothing; with another command the plan's decisions are that command's business.
#include <fmt/core.h>

#include "core/diagnostics.h"
#include "interop/launcher/launch.h"
#include "interop/targets.h"

namespace interop {

namespace {

// How often a job that goes on from its checkpoint is begun anew: enough for a hundred days of a day's time
// limit each, and an end for a job that fails at its start every time.
constexpr int most_restarts = 100;
// From the signal to the time limit: a step and a checkpoint. Slurm may send it up to 60 s early.
constexpr int seconds_of_notice = 120;
// torch.distributed's default port, and how many above it jobs are spread over: jobs may share a node.
constexpr int first_port = 29500, ports = 1000;

// What Slurm does with a job that goes on from its checkpoint. The signal goes to the ranks alone: the batch
// script waits for srun.
std::string slurm_restart_options() {
    return fmt::format("#SBATCH --requeue\n#SBATCH --open-mode=append\n#SBATCH --signal=TERM@{}\n",
                       seconds_of_notice);
}

// Runs the step, and has it run again when it ended as one that goes on: exit code 4, or a rank that a signal
// killed (128 and its number, the highest of all ranks' codes).
std::string slurm_restarting_step(const std::string& step) {
    return fmt::format(
        "status=0\n{} || status=$?\n"
        "if [ $status -eq 4 ] || [ $status -gt 128 ]; then\n"
        "    [ \"${{SLURM_RESTART_COUNT:-0}}\" -ge {} ] || scontrol requeue \"$SLURM_JOB_ID\"\n"
        "fi\nexit $status\n",
        step, most_restarts);
}

// torch.distributed's env:// reads these, which Slurm calls by other names.
std::string with_ranks_of_torch(const std::string& command) {
    return "sh -c " + shell_quoted("export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID; " + command);
}

}  // namespace

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
    std::vector<std::string> notes = launch_notes(e, *launch);
    notes.emplace_back("as root, in a container say, mpirun wants --allow-run-as-root");
    if (!launch->is_local)
        notes.emplace_back("where ranks are more than the slots of a host: --oversubscribe");
    return Export{text + " " + launch->command + "\n", {}, std::move(notes)};
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
    if (launch->resumes) text += slurm_restart_options();
    text += "set -eu\n" + efa_exports(source);
    text += fmt::format(
        "export MASTER_ADDR=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)\n"
        "export MASTER_PORT=$(({} + SLURM_JOB_ID % {}))\n",
        first_port, ports);
    if (launch->is_smexec)  // a secret of this start, by which ranks know each other
        text += "export SMEXEC_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')\n";
    else text += fmt::format("export WORLD_SIZE=$SLURM_NTASKS LOCAL_WORLD_SIZE={}\n", launch->processes);
    const std::string step =
        "srun --label " + (launch->is_smexec ? launch->command : with_ranks_of_torch(launch->command));
    text += launch->resumes ? slurm_restarting_step(step) : step + "\n";
    return Export{text, {}, launch_notes(e, *launch)};
}

}  // namespace interop
