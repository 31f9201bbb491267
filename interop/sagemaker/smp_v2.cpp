// SageMaker SMP v2: nine keys (model parallel library v2 reference), PyTorch FSDP and Transformer Engine
// underneath; no pipeline, no automatic partition.
#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/document.h"
#include "core/index/integers.h"
#include "core/reader.h"
#include "interop/expression.h"
#include "interop/import_place.h"
#include "interop/python_literal.h"
#include "interop/sagemaker/example_scripts.h"
#include "interop/source_text.h"
#include "interop/targets.h"

namespace interop {

namespace {

constexpr core::IntegerRange degree_range{.least = 0, .greatest = 1 << 20};

void precision(Expression& e, core::Value& hyperparameters) {
    const schedule::Precision& p = e.plan.precision;
    if (p.compute == core::DataType::fp16) {
        e.refuse("precision", "\"fp16\"", "its training scripts know bf16 and fp8",
                 "set precision = \"bf16\"");
    } else if (p.compute == core::DataType::fp8) {
        e.leave_to_script("precision: fp8 (Transformer Engine, p5 only)");
        hyperparameters["fp8"] = 1;
    } else {
        e.require_plain_precision();
    }
    hyperparameters["bf16"] = p.activations() == core::DataType::bf16 ? 1 : 0;
}

// The same for SageMaker's Python SDK 3, which has no estimators: sagemaker.train.
std::string model_trainer(const ExportSource& source, const core::Value& estimator,
                          const core::Value& parameters, int processes) {
    PythonCall torchrun("Torchrun");
    torchrun.with("process_count_per_node", processes)
        .with_source("smp", PythonCall("SMP").with_members(parameters).text(2));
    PythonCall trainer("ModelTrainer");
    trainer
        .with_source("compute", PythonCall("Compute")
                                    .with("instance_type", "ml." + source.cluster.instance.name)
                                    .with("instance_count", source.cluster.nodes)
                                    .text(1))
        .with_source("source_code", PythonCall("SourceCode")
                                        .with("source_dir", ".")
                                        .with("entry_script", *estimator.find("entry_point"))
                                        .text(1))
        .with("hyperparameters", *estimator.find("hyperparameters"))
        .with_source("distributed", torchrun.text(1))
        .with("training_image", "REPLACE_WITH_AN_IMAGE_OF_SMP_V2");
    return "from sagemaker.train import ModelTrainer\nfrom sagemaker.train.configs import Compute, "
           "SourceCode\n"
           "from sagemaker.train.distributed import SMP, Torchrun\n\ntrainer = " +
           trainer.text() + "\n";
}

}  // namespace

std::optional<Export> write_smp_v2(const ExportSource& source, const ExportOptions& options,
                                   core::Diagnostics& diagnostics) {
    Expression e(source, "SageMaker SMP v2", diagnostics);
    const schedule::Plan& plan = e.plan;
    e.refuse_pipeline("set pipeline_parallel = 1, or export to sagemaker-smp-v1, megatron or deepspeed");
    e.require_order({"DPT"});
    e.refuse_sequence_parallel("none of its keys turns it on");
    e.refuse_shared_heads("Transformer Engine divides keys and values by whole heads");
    e.refuse_recompute(schedule::Recompute::selective, "its scripts checkpoint whole layers");
    e.refuse_recompute_layers("its scripts checkpoint every layer");
    e.refuse_communication(schedule::ContextCommunication::all_to_all,
                           "its context parallelism passes keys and values, not heads");
    e.refuse_communication(schedule::ContextCommunication::ring, "none of its keys asks for one");
    core::Value hyperparameters = core::Value::table();
    hyperparameters["train_batch_size"] = plan.micro_batch;
    precision(e, hyperparameters);

    const int degree = plan.effective_shard_degree();
    if (degree > 1 && plan.sharding == schedule::Sharding::optimizer)
        e.refuse("sharding", "\"optimizer\"", "FSDP shards gradients with the optimizer's state",
                 "set sharding to \"gradients\" or \"parameters\"");
    hyperparameters["sharding_strategy"] = degree == 1 ? "no_shard"
                                           : plan.sharding == schedule::Sharding::gradients
                                               ? "_hybrid_shard_zero2"
                                               : "hybrid_shard";
    hyperparameters["activation_checkpointing"] = plan.recompute == schedule::Recompute::full ? 1 : 0;
    e.leave_to_script(fmt::format("micro_batch = {} (train_batch_size)", plan.micro_batch));
    if (plan.micro_batches > 1)
        e.leave_to_script(fmt::format("micro_batches = {} (gradient accumulation)", plan.micro_batches));
    e.leave_to_script(
        fmt::format("recompute = \"{}\", precision, sharding_strategy (hyperparameters in estimator.json, by "
                    "AWS's example scripts' names)",
                    schedule::name_of(plan.recompute)));
    if (plan.attention == model::AttentionImplementation::flash) hyperparameters["use_smp_flash_attn"] = 1;
    else e.leave_to_script("attention other than flash");
    if (plan.fused_cross_entropy) e.leave_to_script("fused_cross_entropy = true");
    if (degree == 1)
        e.leave_to_script(fmt::format("gradient_bucket = {}", core::format(plan.gradient_bucket)));
    if (!plan.overlaps_gradient_reduction)
        e.refuse("overlaps_gradient_reduction", "false", "FSDP overlaps reduction with backward always",
                 "set overlaps_gradient_reduction = true");
    if (!plan.overlaps_parameter_gathering)
        e.leave_to_script("overlaps_parameter_gathering = false (backward_fetch_policy, forward_prefetch)");
    e.leave_collective_to_environment();
    e.leave_optimizer_to_script();
    const int processes = processes_per_node(source);
    if (processes == 0)
        e.refuse("data_parallel", std::to_string(plan.layout.data),
                 "torchrun starts equally many processes on each instance",
                 "make the ranks a multiple of the instances");
    e.refuse_optimizer_offload();
    e.refuse_parameter_offload();
    if (plan.offload == schedule::Offload::disk)
        e.refuse("offload", "\"disk\"", "it offloads to the memory of the host", "set offload = \"host\"");
    if (plan.offload == schedule::Offload::host)
        e.leave_to_script("offload (offload_wrapper of PyTorch around the layers)");
    e.refuse_whole_experts("its experts take ranks of data parallelism alone");
    if (!e.finish()) return std::nullopt;

    core::Value parameters;
    parameters["hybrid_shard_degree"] =
        degree;  // 1: NO_SHARD; 0 would leave it to the script's FSDP strategy
    parameters["tensor_parallel_degree"] = plan.layout.tensor;
    parameters["context_parallel_degree"] = plan.layout.context;
    parameters["expert_parallel_degree"] = plan.layout.expert;
    parameters["sm_activation_offloading"] = plan.offload == schedule::Offload::host;
    if (plan.offload == schedule::Offload::host)
        parameters["activation_loading_horizon"] = plan.activation_loading_horizon;  // layers, as here
    parameters["random_seed"] = static_cast<std::int64_t>(source.file.training.seed);
    core::Value distribution;
    distribution["torch_distributed"]["enabled"] = true;
    distribution["smdistributed"]["modelparallel"]["enabled"] = true;
    distribution["smdistributed"]["modelparallel"]["parameters"] = parameters;
    core::Value estimator;
    estimator["entry_point"] =
        options.script.empty() ? "REPLACE_WITH_YOUR_TRAINING_SCRIPT.py" : options.script;
    estimator["instance_type"] = "ml." + source.cluster.instance.name;
    estimator["instance_count"] = source.cluster.nodes;
    estimator["hyperparameters"] = hyperparameters;
    estimator["distribution"] = distribution;
    const std::string trainer = model_trainer(source, estimator, parameters, processes);
    Export result{core::to_json(distribution),
                  {{"estimator.json", core::to_json(estimator)},
                   {"smp_config.json", core::to_json(parameters)},
                   {"model_trainer.py", trainer}},
                  {placement_note(plan.layout)}};
    if (processes != source.cluster.instance.devices)
        result.notes.push_back(fmt::format(
            "SageMaker's torchrun starts one process on each of {} devices of an instance; the plan uses {}",
            source.cluster.instance.devices, processes));
    return result;
}

std::optional<schedule::PlanFile> read_smp_v2(const std::string& text, const std::string& path,
                                              const ImportOptions& options, core::Diagnostics& diagnostics) {
    const std::optional<core::Value> document = parse_python_literal(text, path, diagnostics);
    if (!document) return std::nullopt;
    const SageMakerBlock block =
        find_modelparallel(*document, {"hybrid_shard_degree", "tensor_parallel_degree",
                                       "sm_activation_offloading", "context_parallel_degree"});
    if (!block.parameters) {
        diagnostics.error({path, 1, 1}, "", "no parameters of SMP v2 are in this file",
                          "give the estimator's distribution or smp_config.json");
        return std::nullopt;
    }
    ImportLocation place = import_place(block, options, path, diagnostics);
    if (place.processes_per_node == 0) {
        diagnostics.error({path, 1, 1}, "", "how many processes there are is not in this file",
                          "give --instance and --nodes, or --processes-per-node");
        return std::nullopt;
    }
    const std::size_t errors = diagnostics.error_count();
    core::TableReader reader(*block.parameters, "parameters", diagnostics);
    schedule::Plan& plan = place.file.plan;
    plan.layout.order = "DPT";
    plan.layout.tensor = core::narrow<int>(
        reader.integer("tensor_parallel_degree", 1, {.least = 1, .greatest = degree_range.greatest}));
    const std::int64_t world = place.processes();
    if (world % plan.layout.tensor != 0)
        reader.error("tensor_parallel_degree",
                     fmt::format("tensor_parallel_degree = {} does not divide {} processes",
                                 plan.layout.tensor, world),
                     "use a divisor");
    else plan.layout.data = static_cast<int>(world / plan.layout.tensor);
    plan.layout.context = core::narrow<int>(
        reader.integer("context_parallel_degree", 1, {.least = 1, .greatest = degree_range.greatest}));
    plan.layout.expert = core::narrow<int>(
        reader.integer("expert_parallel_degree", 1, {.least = 1, .greatest = degree_range.greatest}));
    for (const auto& [key, degree] : {std::pair("context_parallel_degree", plan.layout.context),
                                      std::pair("expert_parallel_degree", plan.layout.expert)})
        if (plan.layout.data % degree != 0) {
            reader.error(key,
                         fmt::format("{} = {} does not divide {} ranks of a tensor-parallel rank", key,
                                     degree, plan.layout.data),
                         "use a divisor");
            plan.layout.context = plan.layout.expert = 1;
        }
    const auto strategy_text = [&]() -> std::string {
        const core::Value* value = block.hyperparameter({"sharding_strategy"});
        return value && value->is_string() ? value->string() : std::string();
    };
    const std::string strategy = strategy_text();
    const auto degree = reader.integer("hybrid_shard_degree", 0, degree_range);
    // 0: FSDP's own, over everything, unless the script says no_shard.
    const bool is_sharded = degree > 1 || (degree == 0 && strategy != "no_shard");
    if (is_sharded) {
        const bool keeps_parameters = strategy == "shard_grad_op" || strategy == "_hybrid_shard_zero2";
        plan.sharding = keeps_parameters ? schedule::Sharding::gradients : schedule::Sharding::parameters;
        if (degree > 0 && plan.layout.data % degree != 0)
            reader.error(
                "hybrid_shard_degree",
                fmt::format("hybrid_shard_degree = {} does not divide {} replicas", degree, plan.layout.data),
                "world must be a multiple of shard degree x tensor degree");
        plan.shard_degree = degree == plan.layout.data ? 0 : static_cast<int>(degree);
        if (degree == 0 && (strategy == "hybrid_shard" || strategy == "_hybrid_shard_zero2"))
            plan.shard_degree = static_cast<int>(place.processes_per_node);
        if (degree == 0 && strategy.empty())
            reader.warning("hybrid_shard_degree",
                           "hybrid_shard_degree = 0 leaves sharding to FSDP's strategy in the script: "
                           "FULL_SHARD is assumed");
    }
    if (reader.boolean("sm_activation_offloading", false))
        reader.warning("sm_activation_offloading",
                       "sm_activation_offloading = true has no counterpart in a plan: it offloads only what "
                       "the script wraps, which is not at hand");
    if (const auto seed = reader.optional_integer("random_seed", {.least = 0}))
        place.file.training.seed = static_cast<std::uint64_t>(*seed);
    for (const char* key : {"activation_loading_horizon", "fsdp_cache_flush_warnings", "allow_empty_shards"})
        reader.ignore(key);
    reader.finish();
    const core::Value* checkpointing = block.hyperparameter({"activation_checkpointing"});
    if (checkpointing && is_true(*checkpointing)) plan.recompute = schedule::Recompute::full;
    if (const core::Value* bf16 = block.hyperparameter({"bf16"}); bf16 && !is_true(*bf16))
        plan.precision = {core::DataType::fp32, core::DataType::fp32, core::DataType::fp32, false};
    read_example_hyperparameters(block, options, place.file);
    const core::Value* batch = block.hyperparameter({"train_batch_size", "batch_size"});
    if (options.micro_batch) plan.micro_batch = static_cast<int>(*options.micro_batch);
    else if (batch && batch->kind() == core::Value::Kind::integer && batch->integer() > 0 &&
             batch->integer() < (1 << 20))
        plan.micro_batch = static_cast<int>(batch->integer());
    else
        diagnostics.warning(
            {path, 0, 0}, "plan.micro_batch",
            "the batch size is the script's and not in this file: micro_batch = 1 is a placeholder",
            "give --micro-batch");
    if (diagnostics.error_count() > errors) return std::nullopt;
    return place.file;
}

}  // namespace interop
