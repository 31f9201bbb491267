// Kubeflow's PyTorchJob (kubeflow.org/v1): one replica a node, torchrun in each. The operator gives torchrun
// its nodes, processes and first host (PET_NNODES, PET_NPROC_PER_NODE, PET_NODE_RANK, PET_MASTER_ADDR).
#include <fmt/core.h>

#include "core/diagnostics.h"
#include "interop/launcher/launch.h"
#include "interop/source_text.h"
#include "interop/targets.h"

namespace interop {

namespace {

core::Value variables(const ExportSource& source) {
    core::Value list = core::Value::array();
    for (const std::string& assignment : efa_variables(source)) {
        const std::size_t equals = assignment.find('=');
        core::Value variable;
        variable["name"] = assignment.substr(0, equals);
        variable["value"] = assignment.substr(equals + 1);
        list.append(std::move(variable));
    }
    return list;
}

core::Value replica(const ExportSource& source, const Launch& launch, int count) {
    core::Value container;
    container["name"] = "pytorch";  // the operator knows the container by this name
    container["image"] = "REPLACE_WITH_YOUR_IMAGE";
    container["command"] = core::Value(core::Value::Array{"/bin/sh", "-c"});
    container["args"] = core::Value(core::Value::Array{
        fmt::format("torchrun {}{}", launch.is_smexec ? "--no-python " : "", launch.command)});
    if (const core::Value list = variables(source); list.size() > 0) container["env"] = list;
    if (!launch.is_local)
        container["resources"]["limits"]["nvidia.com/gpu"] = std::to_string(launch.processes);
    core::Value replica;
    replica["replicas"] = count;
    replica["restartPolicy"] = "OnFailure";
    core::Value& pod = replica["template"]["spec"];
    if (!launch.is_local)
        pod["nodeSelector"]["node.kubernetes.io/instance-type"] = source.cluster.instance.name;
    pod["containers"].append(std::move(container));
    return replica;
}

}  // namespace

std::optional<Export> write_kubernetes(const ExportSource& source, const ExportOptions& options,
                                       core::Diagnostics& diagnostics) {
    Expression e(source, "a PyTorchJob", diagnostics);
    const auto launch = prepare_launch(e, options, "env");
    if (!launch) return std::nullopt;
    core::Value job;
    job["apiVersion"] = "kubeflow.org/v1";
    job["kind"] = "PyTorchJob";
    job["metadata"]["name"] = "smplan";
    job["spec"]["nprocPerNode"] = std::to_string(launch->processes);
    job["spec"]["runPolicy"]["cleanPodPolicy"] = "Running";
    core::Value& replicas = job["spec"]["pytorchReplicaSpecs"];
    replicas["Master"] = replica(source, *launch, 1);
    if (launch->nodes > 1) replicas["Worker"] = replica(source, *launch, launch->nodes - 1);
    diagnostics.warning(
        {source.file.path, 0, 0}, "cluster",
        "the plan does not name an image: REPLACE_WITH_YOUR_IMAGE is a placeholder",
        "name one that holds the command and the plan; nodes with EFA need their device plugin's "
        "resource too");
    return Export{yaml(job), {}, launch_notes(e, *launch)};
}

}  // namespace interop
