// torchtitan's configuration as a Python module for `--module NAME --config plan` (0.3.0; its TOML ended with
// 9810191bb of 2026-02-23). The model is its Llama or Qwen3 with the plan's dimensions. Its mesh is pp,
// dp_replicate, dp_shard, cp, tp, the last fastest. It takes an arbitrary partition
// (module_fqns_per_model_part).
#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/document.h"
#include "interop/expression.h"
#include "interop/source_text.h"
#include "interop/targets.h"
#include "interop/torchtitan_model.h"
#include "interop/torchtitan_schedules.h"
#include "interop/transformer_shape.h"
#include "schedule/pipeline/registry.h"
#include "schedule/plan/partition.h"

namespace interop {

namespace {

// Refuses what its models here are not.
TransformerShape known_shape(Expression& e, core::Diagnostics& diagnostics) {
    const TransformerShape shape = transformer_shape(e.source.graph);
    std::vector<core::Unsupported> reasons = shape.unsupported;
    if (reasons.empty()) reasons = torchtitan_lacks(shape);
    for (const core::Unsupported& unsupported : reasons)
        diagnostics.error(
            {e.source.file.path, 0, 0}, "model",
            fmt::format("the model cannot be expressed by torchtitan's: {}", unsupported.reason),
            "choose a Llama, a Qwen3 or a DeepSeek-V3, or another target");
    if (shape.is_tied && e.plan.layout.pipeline > 1)
        e.refuse("pipeline_parallel", std::to_string(e.plan.layout.pipeline),
                 "it ties no embeddings across stages", "set pipeline_parallel = 1");
    if (e.plan.layout.tensor > 1 && shape.kv_heads % e.plan.layout.tensor != 0)
        e.refuse("tensor_parallel", std::to_string(e.plan.layout.tensor),
                 fmt::format("it must divide {} heads of keys and values", shape.kv_heads),
                 "use a divisor of them");
    return shape;
}

// Experts take the ranks over which all else is sharded, and tensor ranks, consecutive ones: whole then, each
// rank routing its own tokens; divided over tensor ranks where they take none (moe_sharding.py, b5bcd76c6,
// 2026-08-21).
void experts(Expression& e, const TransformerShape& shape, core::Value& parallelism) {
    const schedule::Plan& plan = e.plan;
    if (plan.layout.expert_ranks() == 1) return;
    if (shape.experts == 0) {
        e.refuse_expert_parallel();
        return;
    }
    if (plan.effective_shard_degree() % plan.layout.expert != 0)
        e.refuse("expert_parallel", std::to_string(plan.layout.expert),
                 "its experts take ranks over which parameters are sharded", "set sharding = \"parameters\"");
    if (plan.layout.expert > 1 && plan.layout.expert_tensor() > 1)
        e.refuse(
            "expert_parallel", std::to_string(plan.layout.expert),
            "experts that it spreads over ranks are not divided over tensor ranks",
            "set expert_tensor_parallel = 1, with a multiple of tensor_parallel, or tensor_parallel = 1");
    parallelism["expert_parallel_degree"] = plan.layout.expert_ranks();
}

void pipeline(Expression& e, core::Value& parallelism) {
    const schedule::Plan& plan = e.plan;
    if (plan.layout.pipeline == 1) {
        e.refuse_virtual_stages();
        e.require_schedule({"1f1b"});
        return;
    }
    const schedule::PipelineSchedule* chosen = schedule::find_pipeline_schedule(plan.schedule);
    const std::string word = torch_schedule(chosen ? chosen->name : plan.schedule).value_or("");
    e.require_schedule(schedules_with_torch_names());
    const int group = plan.parameters<schedule::GroupParameters>().group_size;
    if (group > 0 && group != plan.layout.pipeline)
        e.refuse("group_size", std::to_string(group), "Interleaved1F1B has groups of its own",
                 "leave group_size out");
    parallelism["pipeline_parallel_schedule"] = word;
    parallelism["pipeline_parallel_microbatch_size"] = plan.micro_batch;
    const auto partition = schedule::complete_partition(plan, e.source.graph);
    if (!partition) return;
    core::Value parts = core::Value::array();
    const auto& first = partition->first_units;
    for (std::size_t stage = 0; stage < first.size(); ++stage) {
        const std::size_t end = stage + 1 < first.size() ? static_cast<std::size_t>(first[stage + 1])
                                                         : e.source.graph.units.size();
        core::Value part = core::Value::array();
        for (std::size_t unit = first[stage]; unit < end; ++unit) {
            const std::string& name = e.source.graph.units[unit].name;
            if (name == "embedding") part.append("tok_embeddings");
            else if (name == "head") part.append("norm"), part.append("lm_head");
            else part.append(name);
        }
        parts.append(part);
    }
    parallelism["module_fqns_per_model_part"] = parts;
}

// "default" frees gathered parameters after the forward pass, but not in pipelines. There stages accumulate
// whole gradients and reduce them with the last micro-batch (torch/distributed/pipelining/stage.py,
// backward_maybe_with_nosync), so that only the optimizer's state stays divided through the step.
std::string reshard_after_forward(Expression& e, schedule::Sharding sharding, bool is_pipeline) {
    switch (sharding) {
        case schedule::Sharding::none:
        case schedule::Sharding::optimizer: return "default";
        case schedule::Sharding::gradients:
            if (is_pipeline)
                e.refuse("sharding", "\"gradients\"",
                         "in a pipeline it reduces gradients with the last micro-batch only",
                         "set sharding = \"optimizer\", or pipeline_parallel = 1");
            return "never";
        case schedule::Sharding::parameters:
            if (is_pipeline)
                e.warn("sharding",
                       "in a pipeline it gathers parameters once a step by default; "
                       "fsdp_reshard_after_forward = \"always\" gathers them for every micro-batch",
                       "sharding = \"optimizer\" is its default");
            return is_pipeline ? "always" : "default";
    }
    throw core::InternalError("broken promise: every sharding has a mode");
}

void mesh(Expression& e, core::Value& parallelism) {
    const FsdpMesh mesh = e.fsdp_mesh();
    e.refuse_communication(schedule::ContextCommunication::ring,
                           "its context parallelism gathers keys and values");
    parallelism["data_parallel_replicate_degree"] = mesh.dp_replicate;
    parallelism["data_parallel_shard_degree"] = mesh.dp_shard;
    parallelism["context_parallel_degree"] = mesh.cp;
    parallelism["tensor_parallel_degree"] = mesh.tp;
    if (e.plan.effective_shard_degree() > 1 || e.plan.keeps_parameters_on_hosts())
        parallelism["fsdp_reshard_after_forward"] =
            reshard_after_forward(e, e.plan.sharding, e.plan.layout.pipeline > 1);
}

void precision(Expression& e, core::Value& training) {
    const schedule::Precision& p = e.plan.precision;
    training["dtype"] = "float32";
    if (p.compute == core::DataType::fp32 && p.parameters == core::DataType::fp32 &&
        p.gradients == core::DataType::fp32) {
        training["mixed_precision_param"] = "float32";
    } else if (p.compute == core::DataType::bf16 && p.parameters == core::DataType::bf16 &&
               p.has_master_parameters) {
        training["mixed_precision_param"] = "bfloat16";
        if (p.gradients != core::DataType::fp32)
            e.refuse("precision", "bf16 gradients",
                     "it reduces gradients in fp32 only (mixed_precision_reduce)",
                     "set precision = { compute = \"bf16\", parameters = \"bf16\", gradients = \"fp32\", "
                     "master_parameters = true } and simulate again");
    } else {
        e.refuse("precision", fmt::format("\"{}\"", core::name_of(p.compute)),
                 "it has float32 and bfloat16 with float32 parameters",
                 "set precision to \"fp32\", or bf16 with fp32 gradients");
    }
    training["mixed_precision_reduce"] = "float32";
}

std::string optimizer_source(Expression& e, core::Diagnostics& diagnostics) {
    const schedule::Optimizer& o = e.plan.optimizer;
    if (o.kind != schedule::OptimizerKind::adam && o.kind != schedule::OptimizerKind::adamw) {
        diagnostics.error(
            {e.source.file.path, 0, 0}, "training.optimizer",
            fmt::format("optimizer = \"{}\" cannot be expressed by torchtitan: it has Adam and AdamW",
                        schedule::name_of(o.kind)),
            "set optimizer = \"adamw\"");
        return {};
    }
    core::Value arguments = core::Value::table();
    arguments["lr"] = o.learning_rate;
    arguments["betas"] = core::Value(core::Value::Array{o.beta1, o.beta2});
    arguments["eps"] = o.epsilon;
    arguments["weight_decay"] = o.weight_decay;
    const PythonCall group =
        PythonCall("ParamGroupConfig")
            .with("pattern", ".*")
            .with("optimizer_name", o.kind == schedule::OptimizerKind::adam ? "Adam" : "AdamW")
            .with("optimizer_kwargs", arguments);
    return PythonCall("OptimizersContainer.Config")
        .with_source("param_groups", "[" + group.text(3) + "]")
        .text(2);
}

core::Value training_table(Expression& e) {
    const schedule::Plan& plan = e.plan;
    core::Value training = core::Value::table();
    // A pipeline cuts the local batch into micro-batches; without one the rest is gradient accumulation.
    training["local_batch_size"] =
        plan.layout.pipeline > 1 ? plan.micro_batch * plan.micro_batches : plan.micro_batch;
    training["global_batch_size"] = plan.global_batch();
    training["seq_len"] = e.source.graph.tokens_per_sample;
    training["steps"] = e.source.file.training.steps;
    // Its default is 1; a norm beyond all others clips nothing.
    training["max_norm"] = plan.optimizer.gradient_clipping > 0 ? plan.optimizer.gradient_clipping : 1e30;
    if (plan.keeps_parameters_on_hosts()) training["enable_cpu_offload"] = true;
    training["disable_cuda_graphs"] = true;  // the prediction starts every kernel from the host
    precision(e, training);
    return training;
}

core::Value parallelism_table(Expression& e, const TransformerShape& shape) {
    core::Value parallelism = core::Value::table();
    mesh(e, parallelism);
    experts(e, shape, parallelism);
    parallelism["enable_sequence_parallel"] = e.plan.has_sequence_parallelism();
    parallelism["pipeline_parallel_degree"] = e.plan.layout.pipeline;
    pipeline(e, parallelism);
    return parallelism;
}

}  // namespace

std::optional<Export> write_torchtitan(const ExportSource& source, const ExportOptions&,
                                       core::Diagnostics& diagnostics) {
    Expression e(source, "torchtitan", diagnostics);
    const schedule::Plan& plan = e.plan;
    e.refuse_activation_offload();
    e.refuse_optimizer_offload_alone();
    const TransformerShape shape = known_shape(e, diagnostics);
    const TorchtitanFamily& family = torchtitan_family(shape);
    const core::Value training = training_table(e), parallelism = parallelism_table(e, shape);
    e.require_order({"PDT"});
    e.refuse_recompute(schedule::Recompute::selective, "its selective mode chooses other operators");
    e.refuse_recompute_layers("its full mode checkpoints every layer");
    const std::string optimizer = optimizer_source(e, diagnostics);
    if (plan.attention != model::AttentionImplementation::flash)
        e.refuse("attention", "not flash", "its models fuse attention (FlexAttention)",
                 "set attention = \"flash\"");
    if (plan.fused_cross_entropy) e.leave_to_script("fused_cross_entropy = true");
    if (plan.effective_shard_degree() == 1 && plan.layout.data > 1)
        e.leave_to_script(fmt::format("gradient_bucket = {}", core::format(plan.gradient_bucket)));
    e.leave_to_script("data and tokenizer (dataloader, hf_assets_path), scaling of rotary positions");
    e.leave_collective_to_environment();
    if (!e.finish()) return std::nullopt;
    core::Value debug = core::Value::table();
    debug["seed"] = static_cast<std::int64_t>(source.file.training.seed);
    const PythonCall spec =
        PythonCall("ModelSpec")
            .with("name", family.name)
            .with("flavor", source.graph.name)
            .with_source("model", "model()")
            .with_source("parallelize_fn", family.parallelize)
            .with_source("pipelining_fn", "pipeline_llm")
            .with_source("post_optimizer_build_fn", "None")
            .with_source("state_dict_adapter", fmt::format("{}StateDictAdapter", family.prefix));
    const PythonCall trainer =
        PythonCall("Trainer.Config")
            .with_source("model_spec", spec.text(2))
            .with_source("loss", "CrossEntropyLoss.Config(global_vocab_size=VOCABULARY)")
            .with_source("optimizer", optimizer)
            .with_source("lr_scheduler", "LRSchedulersContainer.Config(warmup_steps=0, decay_ratio=0.0)")
            .with_source("training", PythonCall("TrainingConfig").with_members(training).text(2))
            .with_source("parallelism", PythonCall("ParallelismConfig").with_members(parallelism).text(2))
            .with_source("activation_checkpoint",
                         plan.recompute == schedule::Recompute::full ? "FullAC.Config()" : "None")
            .with_source("debug", PythonCall("DebugConfig").with_members(debug).text(2))
            .with_source("dataloader", "HuggingFaceTextDataLoader.Config(dataset=\"c4_test\")");
    return Export{torchtitan_imports(shape) + torchtitan_model(shape) + "def plan():\n    return " +
                      trainer.text(1) + "\n",
                  {},
                  {placement_note(plan.layout),
                   "as smplan_config.py: torchrun ... -m torchtitan.train --module smplan_config --config "
                   "plan"}};
}

}  // namespace interop
