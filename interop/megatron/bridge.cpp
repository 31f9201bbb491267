// Megatron-Bridge's configuration, which followed NeMo 2's recipes: a Python module whose `plan()` is given
// to megatron.bridge.training.pretrain. Megatron-LM underneath, with the same limits.
#include <algorithm>
#include <string_view>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "interop/expression.h"
#include "interop/megatron/partition.h"
#include "interop/megatron/rules.h"
#include "interop/source_text.h"
#include "interop/targets.h"
#include "interop/transformer_shape.h"
#include "schedule/plan/partition.h"

namespace interop {

namespace {

void add_shape(const TransformerShape& shape, PythonCall& model) {
    model.with("num_layers", shape.layers)
        .with("hidden_size", shape.hidden)
        .with("ffn_hidden_size", shape.ffn)
        .with("num_attention_heads", shape.heads)
        .with("num_query_groups", shape.kv_heads)
        .with("kv_channels", shape.head_dimension)
        .with("seq_length", shape.sequence_length)
        .with("vocab_size", shape.vocabulary)
        .with("make_vocab_size_divisible_by", 1)  // padded to a multiple of the tensor-parallel degree
        .with("should_pad_vocab", true)
        .with("position_embedding_type", shape.is_rotary ? "rope" : "learned_absolute");
    if (shape.is_rotary)
        model.with("rotary_base", static_cast<std::int64_t>(shape.rotary_base))
            .with("rotary_percent", shape.is_latent() ? 1.0 : shape.rotary_fraction);
    const bool is_clamped = shape.activation_limit.has_value();
    model.with("normalization", shape.is_rms ? "RMSNorm" : "LayerNorm")
        .with("layernorm_epsilon", shape.epsilon)
        .with("gated_linear_unit", shape.is_gated_silu || is_clamped)
        .with_source("activation_func", is_clamped            ? "quick_gelu"
                                        : shape.is_gated_silu ? "F.silu"
                                                              : "F.gelu")
        .with("add_bias_linear", shape.has_linear_bias)
        .with("add_qkv_bias", shape.has_qkv_bias)
        .with("share_embeddings_and_output_weights", shape.is_tied)
        .with("hidden_dropout", shape.hidden_dropout)
        .with("attention_dropout", shape.attention_dropout);
    for (const MegatronProperty& property : megatron_properties(shape))
        if (!property.field.empty()) model.with_source(property.field, property.source);
    if (shape.experts == 0) return;
    model.with("num_moe_experts", shape.experts)
        .with("moe_router_topk", shape.experts_per_token)
        .with("moe_token_dispatcher_type", "alltoall")
        .with("moe_grouped_gemm", true)  // as the experts of a rank are priced
        .with("moe_aux_loss_coeff", shape.auxiliary_loss);
    if (shape.capacity_factor > 0)
        model.with("moe_expert_capacity_factor", shape.capacity_factor)
            .with("moe_token_drop_policy", "position");
}

// The arguments of Megatron-LM that say a partition, as fields.
void add_partition(Expression& e, PythonCall& model) {
    if (e.plan.stages() == 1) return;
    const auto partition = schedule::complete_partition(e.plan, e.source.graph);
    if (!partition) return;  // check_plan has said why
    const MegatronPartition flags = megatron_partition(e.source.graph, e.plan, *partition);
    if (flags.unsupported)
        e.refuse("partition", "this one", flags.unsupported->reason,
                 "leave partition out, or cut between layers");
    if (e.plan.virtual_stages > 1) model.with("virtual_pipeline_model_parallel_size", e.plan.virtual_stages);
    static const std::pair<std::string_view, const char*> fields[] = {
        {"--decoder-first-pipeline-num-layers ", "num_layers_in_first_pipeline_stage"},
        {"--decoder-last-pipeline-num-layers ", "num_layers_in_last_pipeline_stage"}};
    constexpr std::string_view layout = "--pipeline-model-parallel-layout ";
    for (const std::string& argument : flags.arguments) {
        for (const auto& [flag, field] : fields)
            if (argument.starts_with(flag)) model.with_source(field, argument.substr(flag.size()));
        if (argument.starts_with(layout))
            model.with("pipeline_model_parallel_layout", argument.substr(layout.size()));
    }
}

void add_parallelism(Expression& e, PythonCall& model) {
    const schedule::Plan& plan = e.plan;
    for (const auto& field : megatron_parallelism(plan))
        std::visit([&](const auto& value) { model.with(field.first, value); }, field.second);
    // Megatron-LM divides experts as it does the rest unless it is told, and this spreads whole ones
    // (finalize of its TransformerConfig, 067f987df).
    if (plan.layout.expert_ranks() > 1 && !plan.layout.spreads_experts_over_tensor())
        model.with("expert_tensor_parallel_size", plan.layout.expert_tensor());
    model.with("sequence_parallel", plan.has_sequence_parallelism());
    if (const int group = plan.parameters<schedule::GroupParameters>().group_size;
        plan.virtual_stages > 1 && group > 0)
        model.with("microbatch_group_size_per_vp_stage", group);
    add_partition(e, model);
    if (plan.recompute != schedule::Recompute::none)
        model.with("recompute_granularity", schedule::name_of(plan.recompute));
    if (plan.runs_chosen_modules_again())
        model.with("recompute_modules", schedule::names_of(plan.recompute_modules));
    if (plan.recompute == schedule::Recompute::full) {
        const auto [method, layers] = megatron_full_recomputation(plan);
        model.with("recompute_method", method).with("recompute_num_layers", layers);
    }
    if (plan.attention == model::AttentionImplementation::flash)
        model.with_source("attention_backend", "AttnBackend.flash");
    if (plan.attention == model::AttentionImplementation::unfused)
        model.with_source("attention_backend", "AttnBackend.unfused").with("masked_softmax_fusion", false);
    model.with("cross_entropy_loss_fusion", plan.fused_cross_entropy);
}

PythonCall precision(const schedule::Precision& p) {
    PythonCall call("MixedPrecisionConfig");
    const bool is_full = p.parameters == core::DataType::fp32;
    const char* const type = is_full                                ? "torch.float32"
                             : p.parameters == core::DataType::bf16 ? "torch.bfloat16"
                                                                    : "torch.half";
    call.with(is_full                                ? "fp32"
              : p.parameters == core::DataType::bf16 ? "bf16"
                                                     : "fp16",
              true)
        .with_source("params_dtype", type)
        .with_source("pipeline_dtype", type)
        .with("grad_reduce_in_fp32", p.gradients == core::DataType::fp32);
    if (p.compute == core::DataType::fp8) call.with("fp8", "hybrid").with("fp8_recipe", "delayed");
    return call;
}

PythonCall optimizer(const schedule::Plan& plan) {
    const schedule::Optimizer& o = plan.optimizer;
    PythonCall call("OptimizerConfig");
    const bool is_sgd = o.kind == schedule::OptimizerKind::sgd;
    call.with("optimizer", is_sgd ? "sgd" : "adam")
        .with("lr", o.learning_rate)
        .with("weight_decay", o.weight_decay);
    if (is_sgd) call.with("sgd_momentum", o.momentum);
    else call.with("adam_beta1", o.beta1).with("adam_beta2", o.beta2).with("adam_eps", o.epsilon);
    call.with("clip_grad", o.gradient_clipping)
        .with("use_distributed_optimizer", uses_distributed_optimizer(plan));
    if (plan.updates_on_hosts())
        call.with("optimizer_cpu_offload", true)
            .with("use_precision_aware_optimizer", true)
            .with("overlap_cpu_optimizer_d2h_h2d", true);
    return call;
}

PythonCall data_parallelism(const schedule::Plan& plan) {
    const bool shards = plan.shards(schedule::Sharding::optimizer);
    PythonCall call("DistributedDataParallelConfig");
    call.with("use_distributed_optimizer", uses_distributed_optimizer(plan))
        .with("grad_reduce_in_fp32", plan.precision.gradients == core::DataType::fp32)
        .with("overlap_grad_reduce", plan.overlaps_gradient_reduction)
        .with("overlap_param_gather", shards && plan.overlaps_parameter_gathering);
    if (plan.overlaps_gradient_reduction)
        call.with("bucket_size", static_cast<std::int64_t>(plan.gradient_bucket.value /
                                                           core::size_of(plan.precision.gradients).value));
    if (shards && plan.effective_shard_degree() != plan.layout.data)
        call.with("num_distributed_optimizer_instances", plan.layout.data / plan.effective_shard_degree());
    return call;
}

constexpr const char* torch_imports =
    "import torch\n"
    "import torch.nn.functional as F\n";
constexpr const char* other_imports =
    "from megatron.bridge.training.config import (\n"
    "    CheckpointConfig,\n    ConfigContainer,\n    DistributedDataParallelConfig,\n"
    "    DistributedInitConfig,\n    GPTDatasetConfig,\n    LoggerConfig,\n    OptimizerConfig,\n"
    "    RNGConfig,\n    SchedulerConfig,\n    TokenizerConfig,\n    TrainingConfig,\n)\n"
    "from megatron.bridge.training.mixed_precision import MixedPrecisionConfig\n"
    "from megatron.core.transformer.enums import AttnBackend\n\n\n";

}  // namespace

std::optional<Export> write_megatron_bridge(const ExportSource& source, const ExportOptions&,
                                            core::Diagnostics& diagnostics) {
    Expression e(source, "Megatron-Bridge", diagnostics);
    const schedule::Plan& plan = e.plan;
    const schedule::Training& t = source.file.training;
    const TransformerShape shape = transformer_shape(source.graph);
    refuse_beyond_megatron(e, shape, "Megatron-Bridge's providers", diagnostics);
    const bool is_data_last = e.require_order({"PDT", "DPT"}) == "DPT";
    PythonCall model(shape.is_latent() ? "MLAModelProvider" : "GPTModelProvider");
    add_shape(shape, model);
    add_parallelism(e, model);
    e.leave_to_script("data and tokenizer (dataset.blend, tokenizer)");
    e.leave_collective_to_environment();
    if (!e.finish()) return std::nullopt;
    const auto seed = static_cast<std::int64_t>(t.seed);
    PythonCall data("GPTDatasetConfig");
    data.with("seq_length", shape.sequence_length)
        .with("random_seed", seed)
        .with("blend", core::Value())  // no files: its mock data
        .with("split", "9999,8,2")
        .with("dataloader_type", "single")
        .with("reset_attention_mask", false)
        .with("reset_position_ids", false)
        .with("eod_mask_loss", false);
    PythonCall scheduler("SchedulerConfig");
    scheduler.with("lr_decay_style", "constant")
        .with("lr_warmup_iters", 0)
        .with("start_weight_decay", plan.optimizer.weight_decay)
        .with("end_weight_decay", plan.optimizer.weight_decay);
    PythonCall training("TrainingConfig");
    training.with("train_iters", t.steps)
        .with("global_batch_size", plan.global_batch())
        .with("micro_batch_size", plan.micro_batch);
    PythonCall tokenizer("TokenizerConfig");
    tokenizer.with("tokenizer_type", "NullTokenizer").with("vocab_size", shape.vocabulary);
    PythonCall start("DistributedInitConfig");
    start.with("use_tp_pp_dp_mapping", is_data_last);
    PythonCall container("ConfigContainer");
    container.with_source("model", model.text(2))
        .with_source("train", training.text(2))
        .with_source("optimizer", optimizer(plan).text(2))
        .with_source("scheduler", scheduler.text(2))
        .with_source("ddp", data_parallelism(plan).text(2))
        .with_source("dist", start.text(2))
        .with_source("dataset", data.text(2))
        .with_source("logger", "LoggerConfig()")
        .with_source("tokenizer", tokenizer.text(2))
        .with_source("checkpoint", "CheckpointConfig()")
        .with_source("rng", fmt::format("RNGConfig(seed={})", seed))
        .with_source("mixed_precision", precision(plan.precision).text(2));
    std::string imports = shape.is_latent()
                              ? "from megatron.bridge.models.mla_provider import MLAModelProvider\n"
                              : "from megatron.bridge.models import GPTModelProvider\n";
    if (shape.activation_limit) imports += "from megatron.core.activations import quick_gelu\n";
    return Export{
        torch_imports + imports + other_imports + ("def plan():\n    return " + container.text(1)) + "\n",
        {},
        {placement_note(plan.layout),
         "as smplan_recipe.py: pretrain(plan(), forward_step) of megatron.bridge.training, under "
         "torchrun"}};
}

}  // namespace interop
