// SageMaker SMP v1: the `distribution` of an estimator. Keys, defaults and rules: SageMaker Python SDK,
// smd_model_parallel_general.rst (to v1.15.0) and fw_utils.py; `partitions` is always written, because the
// SDK knows its alias pipeline_parallel_degree not.
#include <algorithm>
#include <cmath>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/document.h"
#include "interop/expression.h"
#include "interop/import_place.h"
#include "interop/python_literal.h"
#include "interop/sagemaker/example_scripts.h"
#include "interop/targets.h"
#include "schedule/pipeline/registry.h"

namespace interop {

namespace {

// Developer guide, distributed-model-parallel-support; p3.8xlarge was in the announcement and is no longer
// listed.
const std::vector<std::string> supported_instances = {"g4dn.12xlarge", "p3.16xlarge", "p3dn.24xlarge",
                                                      "p4d.24xlarge", "p4de.24xlarge"};

class SmpV1Writer {
public:
    SmpV1Writer(const ExportSource& source, const ExportOptions& options, core::Diagnostics& diagnostics)
        : e_(source, "SageMaker SMP v1", diagnostics),
          plan_(source.file.plan),
          source_(source),
          options_(options) {}

    std::optional<Export> write() {
        e_.refuse_parts_of_data_axis();
        e_.refuse_offload();
        pipeline();
        tensor_and_data();
        precision();
        sharding();
        partition();
        script();
        const int processes = processes_per_node(source_);
        if (processes == 0)
            e_.refuse("data_parallel", std::to_string(plan_.layout.data),
                      fmt::format("{} ranks do not fill {} instances evenly", plan_.layout.ranks(),
                                  source_.cluster.nodes),
                      "make data_parallel x tensor_parallel x pipeline_parallel a multiple of the instances");
        if (!e_.finish()) return std::nullopt;

        core::Value distribution;
        core::Value& block = distribution["smdistributed"]["modelparallel"];
        block["enabled"] = true;
        block["parameters"] = parameters_;
        distribution["mpi"]["enabled"] = true;
        distribution["mpi"]["processes_per_host"] = processes;
        if (source_.cluster.instance.network_name == "efa") {
            // sagemaker-training's mpi.py: RDMA from p4d on.
            std::string mpi = source_.cluster.instance.has_gpudirect ? "-x FI_EFA_USE_DEVICE_RDMA=1 " : "";
            distribution["mpi"]["custom_mpi_options"] = mpi + "-x FI_PROVIDER=efa -x RDMAV_FORK_SAFE=1";
        }
        core::Value estimator;
        estimator["entry_point"] =
            options_.script.empty() ? "REPLACE_WITH_YOUR_TRAINING_SCRIPT.py" : options_.script;
        estimator["instance_type"] = "ml." + source_.cluster.instance.name;
        estimator["instance_count"] = source_.cluster.nodes;
        estimator["hyperparameters"] = hyperparameters_;
        estimator["distribution"] = distribution;
        Export result{core::to_json(distribution),
                      {{"estimator.json", core::to_json(estimator)}},
                      {placement_note(plan_.layout)}};
        if (!contexts_.empty()) result.companions.push_back({"smp_partition.py", contexts_});
        return result;
    }

private:
    void pipeline() {
        e_.refuse_virtual_stages();
        e_.require_schedule({"interleaved", "simple", "forward-only"});
        parameters_["partitions"] = plan_.layout.pipeline;
        parameters_["microbatches"] = plan_.micro_batches;
        const schedule::PipelineSchedule* chosen = schedule::find_pipeline_schedule(plan_.schedule);
        const std::string name = chosen ? chosen->name : plan_.schedule;
        parameters_["pipeline"] = name == "simple"         ? "simple"
                                  : name == "forward-only" ? "_only_forward"
                                                           : "interleaved";
        const auto admission = plan_.parameters<schedule::AdmissionParameters>();
        parameters_["optimize"] = admission.is_strict ? "memory" : "speed";
        if (admission.is_strict && plan_.layout.tensor > 1)
            e_.warn("strict_order",
                    "optimize = \"memory\" also divides activations between tensor-parallel ranks since "
                    "v1.6, with more communication than the plan has",
                    "set strict_order = false for optimize = \"speed\"");
        if (admission.active_micro_batches > 0)
            parameters_["active_microbatches"] = admission.active_micro_batches;
    }

    void tensor_and_data() {
        // The SDK's validator takes the two words only, although the library knows every permutation.
        const std::string order = e_.require_order({"DPT", "TPD"});
        parameters_["placement_strategy"] = order == "TPD" ? "spread" : "cluster";
        parameters_[options_.is_for_tensorflow ? "horovod" : "ddp"] =
            plan_.layout.data > 1 || plan_.layout.tensor > 1;
        if (plan_.layout.tensor > 1) {
            if (options_.is_for_tensorflow)
                e_.refuse("tensor_parallel", std::to_string(plan_.layout.tensor),
                          "tensor parallelism is of its PyTorch library",
                          "export for PyTorch or set tensor_parallel = 1");
            parameters_["tensor_parallel_degree"] = plan_.layout.tensor;
            parameters_["prescaled_batch"] =
                true;  // the ranks of a tensor-parallel group share one batch, as in the plan
        }
        e_.refuse_sequence_parallel("its tensor parallelism has no such mode");
        e_.refuse_shared_heads("it divides attention by whole heads");
    }

    void precision() {
        e_.require_plain_precision();
        if (plan_.precision.compute == core::DataType::fp16) parameters_["fp16"] = true;
        if (plan_.precision.compute != core::DataType::bf16) return;
        if (plan_.shards(schedule::Sharding::parameters)) parameters_["bf16"] = true;
        else
            e_.refuse("precision", "\"bf16\"", "bf16 works only with sharded data parallelism there",
                      "set precision = \"fp16\", or sharding = \"parameters\"");
    }

    void sharding() {
        if (plan_.effective_shard_degree() == 1) return;
        const int degree = plan_.effective_shard_degree();
        const std::string name = fmt::format("\"{}\"", schedule::name_of(plan_.sharding));
        if (plan_.sharding == schedule::Sharding::optimizer) {
            if (degree != plan_.layout.data)
                e_.refuse("shard_degree", std::to_string(degree),
                          "shard_optimizer_state divides over all replicas", "leave shard_degree out");
            parameters_["shard_optimizer_state"] = true;
        } else if (plan_.sharding == schedule::Sharding::gradients) {
            e_.refuse("sharding", name, "it shards the optimizer's state, or everything",
                      "set sharding to \"optimizer\" or \"parameters\"");
        } else {
            if (plan_.layout.pipeline > 1)
                e_.refuse("sharding", name, "sharded data parallelism excludes a pipeline",
                          "set pipeline_parallel = 1 or sharding = \"optimizer\"");
            if (plan_.layout.tensor > 1)
                e_.warn("sharding", "sharded data parallelism with tensor parallelism needs SMP v1.15.0");
            parameters_["sharded_data_parallel_degree"] = degree;
        }
    }

    void partition() {
        if (plan_.layout.pipeline == 1 || plan_.partition.first_units.empty()) {
            parameters_["auto_partition"] = true;
            if (plan_.layout.pipeline > 1) parameters_["memory_weight"] = plan_.memory_weight;
            if (plan_.layout.pipeline > 1)
                e_.warn("partition",
                        "SMP partitions by itself (auto_partition); its partition may differ from the one "
                        "that was predicted",
                        "give partition in the plan to fix it with smp.partition contexts");
            return;
        }
        parameters_["auto_partition"] = false;
        parameters_["default_partition"] = 0;
        contexts_ =
            "# The plan's partition. Where the model is built, each module belongs into its context:\n";
        const auto& first = plan_.partition.first_units;
        for (std::size_t stage = 0; stage < first.size(); ++stage) {
            const std::size_t end = stage + 1 < first.size() ? static_cast<std::size_t>(first[stage + 1])
                                                             : source_.graph.units.size();
            contexts_ += fmt::format("with smp.partition({}):\n    ...  #", stage);
            for (std::size_t unit = first[stage]; unit < end; ++unit)
                contexts_ += ' ' + source_.graph.units[unit].name;
            contexts_ += '\n';
        }
        e_.leave_to_script("partition (smp.partition contexts, in smp_partition.py)");
    }

    void script() {
        const int batch = plan_.micro_batch * plan_.micro_batches;
        hyperparameters_["batch_size"] = batch;
        e_.leave_to_script(fmt::format(
            "batch_size = {} samples per step and replica, which SMP cuts into {} micro-batches of {}", batch,
            plan_.micro_batches, plan_.micro_batch));
        hyperparameters_["activation_checkpointing"] = plan_.recompute == schedule::Recompute::full ? 1 : 0;
        if (plan_.recompute == schedule::Recompute::full)
            e_.leave_to_script("recompute = \"full\" (smp.set_activation_checkpointing, strategy=\"each\")");
        e_.refuse_recompute(schedule::Recompute::selective, "it recomputes whole modules");
        e_.refuse_recompute_layers("its strategies group layers and leave none out");
        const char* const attention[] = {"unfused", "fused_softmax", "flash"};
        e_.leave_to_script(fmt::format("attention = \"{}\"", attention[static_cast<int>(plan_.attention)]));
        if (plan_.fused_cross_entropy) e_.leave_to_script("fused_cross_entropy = true");
        e_.leave_to_script(fmt::format("gradient_bucket = {} (smp.DistributedModel, bucket_cap_mb)",
                                       core::format(plan_.gradient_bucket)));
        if (!plan_.overlaps_gradient_reduction)
            e_.leave_to_script(
                "overlaps_gradient_reduction = false (smp.DistributedModel, overlapping_allreduce=False)");
        // Developer guide: the gather of updated parameters after the optimizer's step is not overlapped.
        if (plan_.overlaps_parameter_gathering && plan_.shards(schedule::Sharding::optimizer) &&
            plan_.sharding == schedule::Sharding::optimizer)
            e_.warn("overlaps_parameter_gathering", "SMP v1 gathers updated parameters without overlap",
                    "set overlaps_parameter_gathering = false and simulate again");
        e_.leave_collective_to_environment();
        e_.leave_optimizer_to_script();
        const std::string& instance = source_.cluster.instance.name;
        // The SDK's Framework estimator: "SMModelParallel and SMDataParallel currently do not support p5".
        if (instance.starts_with("p5"))
            e_.refuse_outside_plan(
                "cluster.instance", '"' + instance + '"', "its SDK refuses p5 instances",
                "use one of " + core::list_in_words(supported_instances) + ", or export to sagemaker-smp-v2");
        else if (std::find(supported_instances.begin(), supported_instances.end(), instance) ==
                 supported_instances.end())
            e_.warn("", fmt::format("{} is not among the instances that SMP v1 supports", instance),
                    core::list_in_words(supported_instances));
    }

    Expression e_;
    const schedule::Plan& plan_;
    const ExportSource& source_;
    const ExportOptions& options_;
    core::Value parameters_ = core::Value::table(), hyperparameters_ = core::Value::table();
    std::string contexts_;
};

}  // namespace

std::optional<Export> write_smp_v1(const ExportSource& source, const ExportOptions& options,
                                   core::Diagnostics& diagnostics) {
    return SmpV1Writer(source, options, diagnostics).write();
}

std::optional<schedule::PlanFile> read_smp_v1(const std::string& text, const std::string& path,
                                              const ImportOptions& options, core::Diagnostics& diagnostics) {
    const std::optional<core::Value> document = parse_python_literal(text, path, diagnostics);
    if (!document) return std::nullopt;
    const SageMakerBlock block = find_modelparallel(
        *document,
        {"partitions", "pipeline_parallel_degree", "microbatches", "sharded_data_parallel_degree"});
    if (!block.parameters) {
        diagnostics.error({path, 1, 1}, "",
                          "no smdistributed.modelparallel.parameters of SMP v1 is in this file",
                          "give the estimator's distribution");
        return std::nullopt;
    }
    ImportLocation place = import_place(block, options, path, diagnostics);
    if (place.processes_per_node == 0) {
        diagnostics.error({path, 1, 1}, "mpi.processes_per_host", "processes_per_host is not in this file",
                          "give --processes-per-node, or --instance for one process a device");
        return std::nullopt;
    }
    core::Value plan = core::Value::table();
    plan.location = block.parameters->location;
    core::Value sagemaker = core::Value::table();
    sagemaker.location = plan.location;
    sagemaker["processes_per_host"] = static_cast<std::int64_t>(place.processes_per_node);
    core::Value parameters = *block.parameters;
    // The script contains manual partitions: the plan keeps the automatic one.
    const core::Value* automatic = parameters.find("auto_partition");
    if (automatic && automatic->kind() == core::Value::Kind::boolean && !automatic->boolean()) {
        diagnostics.warning(
            automatic->location, "auto_partition",
            "the partition stands in the script, which is not at hand: the plan's is automatic",
            "add partition = [first unit of each stage] to [plan]");
        parameters["auto_partition"] = true;
    }
    sagemaker["parameters"] = parameters;
    plan["sagemaker"] = sagemaker;
    std::optional<schedule::Plan> read =
        schedule::read_plan(plan, nullptr, diagnostics, static_cast<int>(place.nodes));
    if (!read) return std::nullopt;
    const core::Value* batch = block.hyperparameter({"batch_size", "train_batch_size"});
    if (options.micro_batch) {
        read->micro_batch = static_cast<int>(*options.micro_batch);
    } else if (batch && batch->kind() == core::Value::Kind::integer && batch->integer() > 0 &&
               batch->integer() <= (1 << 20)) {
        if (batch->integer() % read->micro_batches != 0) {
            diagnostics.error(batch->location, "batch_size",
                              fmt::format("batch size {} is not a multiple of microbatches = {}",
                                          batch->integer(), read->micro_batches),
                              "SMP cuts the batch into equal micro-batches");
            return std::nullopt;
        }
        read->micro_batch = static_cast<int>(batch->integer() / read->micro_batches);
    } else {
        diagnostics.warning(
            {path, 0, 0}, "plan.micro_batch",
            "the batch size is the script's and not in this file: micro_batch = 1 is a placeholder",
            "give --micro-batch");
    }
    if (const core::Value* checkpointing = block.hyperparameter({"activation_checkpointing"});
        checkpointing && is_true(*checkpointing))
        read->recompute = schedule::Recompute::full;
    place.file.plan = *read;
    read_example_hyperparameters(block, options, place.file);
    return place.file;
}

}  // namespace interop
