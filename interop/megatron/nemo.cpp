// NeMo 1's YAML (megatron_gpt_config.yaml): trainer, model, optim. Megatron-LM underneath, in its default
// numbering, with equal layers a stage.
#include <algorithm>
#include <vector>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/document.h"
#include "interop/expression.h"
#include "interop/megatron/rules.h"
#include "interop/source_text.h"
#include "interop/targets.h"
#include "interop/transformer_shape.h"

namespace interop {

namespace {

void sharding(Expression& e, core::Value& model, core::Value& optimizer) {
    const schedule::Plan& plan = e.plan;
    const int degree = plan.effective_shard_degree();
    optimizer["name"] = "fused_adam";
    if (degree == 1) return;
    if (degree != plan.layout.data)
        e.refuse("shard_degree", std::to_string(degree), "it shards over all replicas",
                 "leave shard_degree out");
    if (plan.sharding == schedule::Sharding::optimizer) {
        optimizer["name"] = "distributed_fused_adam";
        optimizer["overlap_grad_sync"] = plan.overlaps_gradient_reduction;
        optimizer["overlap_param_sync"] = plan.overlaps_parameter_gathering;
        optimizer["bucket_cap_mb"] = plan.gradient_bucket.value / 1048576.0;
        return;
    }
    if (plan.layout.pipeline > 1)
        e.refuse("sharding", fmt::format("\"{}\"", schedule::name_of(plan.sharding)),
                 "FSDP excludes its pipeline", "set pipeline_parallel = 1 or sharding = \"optimizer\"");
    model["fsdp"] = true;
    model["fsdp_sharding_strategy"] = plan.sharding == schedule::Sharding::parameters ? "full" : "grad";
}

}  // namespace

std::optional<Export> write_nemo(const ExportSource& source, const ExportOptions&,
                                 core::Diagnostics& diagnostics) {
    Expression e(source, "NeMo", diagnostics);
    e.refuse_parts_of_data_axis();
    e.refuse_offload();
    e.refuse_shared_heads("its Megatron-core divides keys and values by whole heads");
    const schedule::Plan& plan = e.plan;
    const TransformerShape shape = transformer_shape(source.graph);
    std::vector<core::Unsupported> reasons = shape.unsupported;
    const std::vector<core::Unsupported> beyond = beyond_plain(shape);
    reasons.insert(reasons.end(), beyond.begin(), beyond.end());
    for (const core::Unsupported& unsupported : reasons)
        diagnostics.error(
            {source.file.path, 0, 0}, "model",
            fmt::format("the model cannot be expressed by NeMo's configuration: {}", unsupported.reason),
            "choose another model or target");
    if (!reasons.empty()) return std::nullopt;
    core::Value document = core::Value::table();
    const int processes = processes_per_node(source);
    if (processes == 0)
        e.refuse("data_parallel", std::to_string(plan.layout.data), "every node runs equally many processes",
                 "make the ranks a multiple of cluster.nodes");
    core::Value& trainer = document["trainer"];
    trainer["devices"] = processes;
    trainer["num_nodes"] = source.cluster.nodes;
    trainer["accelerator"] = "gpu";
    const schedule::Precision& p = plan.precision;
    const bool reduces_high = p.compute == core::DataType::bf16 && p.parameters == core::DataType::bf16 &&
                              p.gradients == core::DataType::fp32 && p.has_master_parameters;
    if (!reduces_high) e.require_plain_precision();
    trainer["precision"] = p.compute == core::DataType::bf16
                               ? core::Value("bf16")
                               : core::Value(p.compute == core::DataType::fp16 ? 16 : 32);
    trainer["max_steps"] = source.file.training.steps;
    trainer["gradient_clip_val"] = plan.optimizer.gradient_clipping;

    core::Value& model = document["model"];
    core::Value optimizer = core::Value::table();
    model["micro_batch_size"] = plan.micro_batch;
    model["global_batch_size"] = plan.global_batch();
    model["tensor_model_parallel_size"] = plan.layout.tensor;
    model["pipeline_model_parallel_size"] = plan.layout.pipeline;
    if (plan.virtual_stages > 1) model["virtual_pipeline_model_parallel_size"] = plan.virtual_stages;
    model["sequence_parallel"] = plan.has_sequence_parallelism();
    model["encoder_seq_length"] = shape.sequence_length;
    model["max_position_embeddings"] = std::max(shape.positions, shape.sequence_length);
    model["num_layers"] = shape.layers;
    model["hidden_size"] = shape.hidden;
    model["ffn_hidden_size"] = shape.ffn;
    model["num_attention_heads"] = shape.heads;
    if (shape.kv_heads != shape.heads) model["num_query_groups"] = shape.kv_heads;
    model["megatron_amp_O2"] = p.has_master_parameters;
    if (plan.recompute != schedule::Recompute::none)
        model["activations_checkpoint_granularity"] = schedule::name_of(plan.recompute);
    e.refuse_recompute_modules_but({schedule::RecomputeModule::core_attn},
                                   "NeMo 1 has selective recomputation of attention alone");
    e.refuse_recompute_layers_by_stage("activations_checkpoint_num_layers is one number for all stages");
    if (plan.recompute == schedule::Recompute::full) {
        const auto [method, layers] = megatron_full_recomputation(plan);
        model["activations_checkpoint_method"] = method;
        model["activations_checkpoint_num_layers"] = layers;
    }
    if (shape.experts > 0)
        diagnostics.error({source.file.path, 0, 0}, "model.experts",
                          "a mixture of experts cannot be expressed by NeMo 1's GPT configuration",
                          "export to megatron");
    if (plan.virtual_stages > 1) e.require_schedule({"interleaved-1f1b"});
    else e.require_schedule({"1f1b"});
    e.require_order({"PDT"});
    const int group = plan.parameters<schedule::GroupParameters>().group_size;
    if (group > 0 && plan.virtual_stages > 1 && group != plan.layout.pipeline)
        e.refuse("group_size", std::to_string(group),
                 "its groups have as many micro-batches as the pipeline has ranks", "leave group_size out");
    if (plan.stages() > 1) {
        const auto even = even_layers(source.graph, plan.stages());
        if (even.empty())
            e.refuse("pipeline_parallel", std::to_string(plan.layout.pipeline),
                     fmt::format("it gives every stage equally many of {} layers", shape.layers),
                     "use a number of stages that divides the layers");
        else if (plan.partition.first_units.empty())
            e.warn("partition",
                   "NeMo gives every stage equally many layers; the partition that was predicted may differ",
                   "set partition = " + one_line(core::Value(even)));
        else if (plan.partition.first_units != even)
            e.refuse("partition", one_line(core::Value(plan.partition.first_units)),
                     "it gives every stage equally many layers",
                     "set partition = " + one_line(core::Value(even)));
    }
    sharding(e, model, optimizer);
    const schedule::Optimizer& o = plan.optimizer;
    if (o.kind != schedule::OptimizerKind::adamw &&
        !(o.kind == schedule::OptimizerKind::adam && o.weight_decay == 0))
        diagnostics.error(
            {source.file.path, 0, 0}, "training.optimizer",
            fmt::format(
                "optimizer = \"{}\" cannot be expressed by this NeMo configuration: it is for fused AdamW",
                schedule::name_of(o.kind)),
            "set optimizer = \"adamw\"");
    optimizer["lr"] = o.learning_rate;
    optimizer["weight_decay"] = o.weight_decay;
    optimizer["betas"] = core::Value(core::Value::Array{o.beta1, o.beta2});
    model["optim"] = optimizer;
    if (o.epsilon != 1e-8) e.leave_to_script(fmt::format("training.epsilon = {}", o.epsilon));
    e.leave_to_script(
        "the model's norms, activation, positions, biases, dropout and vocabulary (its own configuration); "
        "attention kernels; data and tokenizer");
    if (reduces_high) e.leave_to_script("gradients in fp32");
    if (plan.fused_cross_entropy) e.leave_to_script("fused_cross_entropy = true");
    if (optimizer.find("bucket_cap_mb") == nullptr)
        e.leave_to_script(fmt::format("gradient_bucket = {}", core::format(plan.gradient_bucket)));
    e.leave_collective_to_environment();
    if (!e.finish()) return std::nullopt;
    return Export{yaml(document), {}, {placement_note(plan.layout)}};
}

}  // namespace interop
