// SageMaker's distributed data parallelism library (SMDDP): the `distribution` of an estimator. Keys:
// SageMaker Python SDK, fw_utils.py, and the developer guide (data-parallel-modify-sdp):
// `smdistributed.dataparallel` replaces DistributedDataParallel, `torch_distributed` starts torchrun, whose
// script asks for the backend "smddp" and its AllGather under FSDP.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include "core/diagnostics.h"
#include "core/document.h"
#include "interop/expression.h"
#include "interop/import_place.h"
#include "interop/python_literal.h"
#include "interop/targets.h"

namespace interop {

namespace {

void refuse_what_smddp_has_not(Expression& e, const ExportSource& source) {
    const schedule::Plan& plan = e.plan;
    const schedule::ParallelLayout& layout = plan.layout;
    e.refuse_pipeline("set pipeline_parallel = 1");
    e.refuse_parts_of_data_axis();
    e.refuse_offload();
    if (layout.tensor > 1)
        e.refuse("tensor_parallel", std::to_string(layout.tensor), "every process is a replica",
                 "set tensor_parallel = 1");
    if (plan.communication != "smddp")
        e.refuse("communication", plan.communication, "its collectives are SMDDP's own",
                 "set communication = \"smddp\"");
    const bool is_known =
        plan.sharding == schedule::Sharding::none || plan.sharding == schedule::Sharding::parameters;
    if (!is_known)
        e.refuse("sharding", std::string(schedule::name_of(plan.sharding)),
                 "it runs under DistributedDataParallel (none) or FSDP (parameters)",
                 "set sharding = \"none\" or \"parameters\"");
    if (layout.ranks() != source.cluster.device_count())
        e.refuse("data_parallel", std::to_string(layout.data),
                 fmt::format("it starts a process on each of the {} devices", source.cluster.device_count()),
                 fmt::format("set data_parallel = {}", source.cluster.device_count()));
}

void leave_rest_to_script(Expression& e) {
    const schedule::Plan& plan = e.plan;
    e.leave_to_script(fmt::format("micro_batch = {} (batch size of a process)", plan.micro_batch));
    if (plan.micro_batches > 1)
        e.leave_to_script(fmt::format("micro_batches = {} (gradient accumulation)", plan.micro_batches));
    e.leave_to_script(fmt::format("precision = {}", core::name_of(plan.precision.compute)));
    if (plan.recompute != schedule::Recompute::none)
        e.leave_to_script(fmt::format("recompute = \"{}\"", schedule::name_of(plan.recompute)));
    if (plan.recomputes_some_layers())
        e.leave_to_script(fmt::format("recompute_layers = {}", schedule::recompute_layers_text(plan)));
    if (plan.runs_chosen_modules_again())
        e.leave_to_script(fmt::format("recompute_modules = {}",
                                      fmt::join(schedule::names_of(plan.recompute_modules), ", ")));
    if (plan.sharding == schedule::Sharding::parameters)
        e.leave_to_script(fmt::format(
            "sharding = \"parameters\" over {} (FSDP; import smdistributed.dataparallel.torch.torch_smddp, "
            "init_process_group(backend=\"smddp\"))",
            plan.effective_shard_degree()));
    e.leave_optimizer_to_script();
}

// The table of the distribution that names the library, and what it asks for.
struct SmddpBlock {
    const core::Value* enabled = nullptr;
    bool shards_parameters = false;
};

std::optional<SmddpBlock> find_smddp(const core::Value& document) {
    const core::Value* distribution = document.find("distribution");
    if (distribution == nullptr) distribution = &document;
    const core::Value* smdistributed = distribution->find("smdistributed");
    const core::Value* library = (smdistributed ? smdistributed : distribution)->find("dataparallel");
    if (library != nullptr) return SmddpBlock{library->find("enabled"), false};
    if (const core::Value* ddp = distribution->find("pytorchddp"))
        return SmddpBlock{ddp->find("enabled"), false};
    if (const core::Value* torchrun = distribution->find("torch_distributed"))
        return SmddpBlock{torchrun->find("enabled"), true};
    return std::nullopt;
}

}  // namespace

std::optional<Export> write_smddp(const ExportSource& source, const ExportOptions& options,
                                  core::Diagnostics& diagnostics) {
    Expression e(source, "SageMaker SMDDP", diagnostics);
    refuse_what_smddp_has_not(e, source);
    leave_rest_to_script(e);
    if (!e.finish()) return std::nullopt;
    core::Value distribution;
    const bool is_fsdp = source.file.plan.sharding == schedule::Sharding::parameters;
    if (is_fsdp) distribution["torch_distributed"]["enabled"] = true;
    else distribution["smdistributed"]["dataparallel"]["enabled"] = true;
    core::Value estimator;
    estimator["entry_point"] =
        options.script.empty() ? "REPLACE_WITH_YOUR_TRAINING_SCRIPT.py" : options.script;
    estimator["instance_type"] = "ml." + source.cluster.instance.name;
    estimator["instance_count"] = source.cluster.nodes;
    estimator["distribution"] = distribution;
    return Export{core::to_json(distribution),
                  {{"estimator.json", core::to_json(estimator)}},
                  {placement_note(source.file.plan.layout)}};
}

std::optional<schedule::PlanFile> read_smddp(const std::string& text, const std::string& path,
                                             const ImportOptions& options, core::Diagnostics& diagnostics) {
    const std::optional<core::Value> document = parse_python_literal(text, path, diagnostics);
    if (!document) return std::nullopt;
    const std::optional<SmddpBlock> smddp = find_smddp(*document);
    const bool is_on =
        smddp && (smddp->enabled == nullptr ||
                  (smddp->enabled->kind() == core::Value::Kind::boolean && smddp->enabled->boolean()));
    if (!is_on) {
        diagnostics.error({path, 1, 1}, "",
                          smddp ? "SMDDP is in this file, but not enabled"
                                : "no smdistributed.dataparallel, pytorchddp or torch_distributed is in this "
                                  "file",
                          "give the estimator's distribution");
        return std::nullopt;
    }
    const SageMakerBlock block = find_modelparallel(*document, {});
    ImportLocation place = import_place(block, options, path, diagnostics);
    if (place.processes_per_node == 0) {
        diagnostics.error(
            {path, 1, 1}, "instance_type",
            "how many devices an instance has is not in this file: SMDDP starts a process on each",
            "give --instance or --processes-per-node");
        return std::nullopt;
    }
    schedule::Plan& plan = place.file.plan;
    plan.layout.data = static_cast<int>(place.processes());
    plan.communication = "smddp";
    // All instances that the library runs on have it, V100 among them.
    plan.precision = schedule::precision_named(core::DataType::fp16);
    diagnostics.warning({path, 0, 0}, "plan.precision",
                        "the precision is the script's and not in this file: fp16 is a placeholder",
                        "set precision in [plan]");
    if (smddp->shards_parameters) {
        plan.sharding = schedule::Sharding::parameters;
        diagnostics.warning({path, 0, 0}, "plan.sharding",
                            "torch_distributed starts any script: FSDP over all processes with the backend "
                            "smddp is assumed",
                            "set sharding = \"none\" for DistributedDataParallel");
    }
    if (options.micro_batch) plan.micro_batch = static_cast<int>(*options.micro_batch);
    else
        diagnostics.warning(
            {path, 0, 0}, "plan.micro_batch",
            "the batch size is the script's and not in this file: micro_batch = 1 is a placeholder",
            "give --micro-batch");
    return place.file;
}

}  // namespace interop
