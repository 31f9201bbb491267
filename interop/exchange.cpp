#include "interop/exchange.h"

#include <algorithm>
#include <filesystem>
#include <limits>

#include "cluster/profile/load.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "interop/targets.h"
#include "model/load.h"

namespace interop {

std::optional<ExportSource> load_export_source(const std::string& path, core::Diagnostics& diagnostics) {
    const std::optional<core::Value> document = core::load_document(path, diagnostics);
    if (!document) return std::nullopt;
    ExportSource source;
    if (const core::Value* table = document->find("plan")) {
        if (table->is_string()) {
            diagnostics.error(table->location, "plan", "this scenario names its plan as a file",
                              "export that file");
            return std::nullopt;
        }
        source.plan_table = *table;
    }
    // A scenario's overrides would change what the file says: only a plan is exported.
    if (const core::Value* what_if = document->find("what_if")) {
        diagnostics.error(what_if->key_location, "what_if", "a scenario with overrides is no plan",
                          "write the overrides into [model], [cluster] and [plan]");
        return std::nullopt;
    }
    const std::optional<schedule::PlanFile> file = schedule::read_plan_file(*document, path, diagnostics);
    if (!file) return std::nullopt;
    source.file = *file;
    const std::string directory = std::filesystem::path(path).parent_path().string();
    const auto graph = model::load_model(file->model, {.directory = directory}, diagnostics);
    const auto cluster = cluster::load_cluster(file->cluster, diagnostics, directory);
    if (!graph || !cluster) return std::nullopt;
    source.graph = *graph;
    source.cluster = *cluster;
    const bool shares_devices = cluster->instance.provider == "local";
    const std::size_t errors = diagnostics.error_count();
    schedule::check_plan(file->plan, *graph,
                         shares_devices ? std::numeric_limits<int>::max() : cluster->device_count(),
                         &source.plan_table, diagnostics);
    if (diagnostics.error_count() > errors) return std::nullopt;
    return source;
}

const std::vector<ExchangeTarget>& exchange_targets() {
    static const std::vector<ExchangeTarget> targets = {
        {"sagemaker-smp-v1",
         "the estimator's `distribution` of SageMaker's model parallel library 1.x (JSON)", write_smp_v1,
         read_smp_v1, "pytorch-1"},
        {"sagemaker-smp-v2", "the same of its version 2 (JSON)", write_smp_v2, read_smp_v2, "pytorch-fsdp"},
        {"sagemaker-smddp", "the estimator's `distribution` of SageMaker's data parallel library (JSON)",
         write_smddp, read_smddp},
        {"megatron", "arguments of Megatron-LM's pretrain_gpt.py", write_megatron, read_megatron,
         "megatron-lm"},
        {"deepspeed", "DeepSpeed's configuration (JSON), with Python for a pipeline", write_deepspeed,
         read_deepspeed, "deepspeed"},
        {"torchtitan", "torchtitan's configuration (Python, with the model)", write_torchtitan,
         read_torchtitan, "torchtitan"},
        {"accelerate", "Hugging Face accelerate's configuration (YAML; FSDP 2)", write_accelerate, nullptr,
         "pytorch-fsdp"},
        {"megatron-bridge", "Megatron-Bridge's configuration (Python; after NeMo 2)", write_megatron_bridge,
         nullptr, "nemo"},
        {"nemo", "NeMo 1's configuration (YAML)", write_nemo, nullptr, "nemo"},
        {"torchrun", "commands that start every rank with torchrun", write_torchrun, nullptr},
        {"mpirun", "an Open MPI command", write_mpirun, nullptr},
        {"slurm", "a batch script for sbatch", write_slurm, nullptr},
        {"kubernetes", "Kubeflow's PyTorchJob (YAML)", write_kubernetes, nullptr},
        {"skypilot", "SkyPilot's task (YAML)", write_skypilot, nullptr},
    };
    return targets;
}

const ExchangeTarget* find_exchange_target(const std::string& name) {
    for (const ExchangeTarget& target : exchange_targets())
        if (target.name == name) return &target;
    return nullptr;
}

std::vector<Refusal> refusals(const ExchangeTarget& target, const ExportSource& source) {
    core::Diagnostics diagnostics;
    target.write(source, {}, diagnostics);
    std::vector<Refusal> found;
    for (const core::Diagnostic& problem : diagnostics.entries())
        if (problem.severity == core::Severity::error || problem.key.starts_with("plan.overlaps_") ||
            problem.key == "plan.gradient_bucket")
            found.push_back({problem.key, problem.message, problem.hint});
    return found;
}

}  // namespace interop
