#include "interop/launcher/launch.h"

#include <fmt/core.h>

#include "core/diagnostics.h"

namespace interop {

std::string shell_quoted(const std::string& text) {
    if (!text.empty() &&
        text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-=:,+@") ==
            std::string::npos)
        return text;
    std::string result = "'";
    for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return result + "'";
}

std::optional<Launch> prepare_launch(Expression& e, const ExportOptions& options, const char* ranks_from) {
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
        launch.command = fmt::format("smexec {} --backend {} --ranks-from {}", shell_quoted(source.file.path),
                                     launch.is_local ? "cpu" : "cuda", ranks_from);
        if (!options.checkpoint.empty()) {
            launch.resumes = true;
            launch.command += " --checkpoint " + shell_quoted(options.checkpoint);
            if (options.checkpoint_every)
                launch.command += fmt::format(" --every {}", *options.checkpoint_every);
            launch.command += " --resume --no-compare";  // a start measures nothing for a prediction
        }
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

std::vector<std::string> launch_notes(const Expression& e, const Launch& launch) {
    return {placement_note(e.plan.layout),
            fmt::format("ranks {} to {} run on the first node, and so on: consecutive ranks share a node", 0,
                        launch.processes - 1)};
}

// sagemaker-training's torch_distributed.py and mpi.py.
std::vector<std::string> efa_variables(const ExportSource& source) {
    if (source.cluster.instance.network_name != "efa") return {};
    std::vector<std::string> variables;
    if (source.cluster.instance.has_gpudirect) variables.push_back("FI_EFA_USE_DEVICE_RDMA=1");
    variables.push_back("FI_PROVIDER=efa");
    variables.push_back("RDMAV_FORK_SAFE=1");
    return variables;
}

std::string efa_exports(const ExportSource& source) {
    std::string lines;
    for (const std::string& variable : efa_variables(source)) lines += "export " + variable + "\n";
    return lines;
}

}  // namespace interop
