// SkyPilot's task: nodes of an instance type, torchrun on each with the variables that SkyPilot sets
// (SKYPILOT_NODE_IPS, SKYPILOT_NODE_RANK).
#include <fmt/core.h>

#include "core/diagnostics.h"
#include "interop/launcher/launch.h"
#include "interop/source_text.h"
#include "interop/targets.h"

namespace interop {

std::optional<Export> write_skypilot(const ExportSource& source, const ExportOptions& options,
                                     core::Diagnostics& diagnostics) {
    Expression e(source, "SkyPilot", diagnostics);
    if (source.cluster.instance.provider == "local")
        e.refuse_outside_plan("cluster.instance", '"' + source.cluster.instance.name + '"',
                              "it is no cloud's", "export to torchrun");
    const auto launch = prepare_launch(e, options, "env");
    if (!launch) return std::nullopt;
    core::Value task;
    task["name"] = "smplan";
    task["num_nodes"] = launch->nodes;
    task["resources"]["infra"] = source.cluster.instance.provider;
    task["resources"]["instance_type"] = source.cluster.instance.name;
    for (const std::string& assignment : efa_variables(source)) {
        const std::size_t equals = assignment.find('=');
        task["envs"][assignment.substr(0, equals)] = assignment.substr(equals + 1);
    }
    task["run"] = fmt::format(
        "torchrun --nnodes={} --nproc_per_node={} --node_rank=$SKYPILOT_NODE_RANK \\\n"
        "  --master_addr=$(echo \"$SKYPILOT_NODE_IPS\" | head -n 1) --master_port=29500 \\\n"
        "  {}{}\n",
        launch->nodes, launch->processes, launch->is_smexec ? "--no-python " : "", launch->command);
    return Export{yaml(task), {}, launch_notes(e, *launch)};
}

}  // namespace interop
