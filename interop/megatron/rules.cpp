#include "interop/megatron/rules.h"

#include <fmt/core.h>

namespace interop {

namespace {

void refuse_schedules(Expression& e) {
    const schedule::Plan& plan = e.plan;
    if (plan.virtual_stages > 1) e.require_schedule({"interleaved-1f1b"});
    else e.require_schedule({"1f1b"});
}

void refuse_sharding(Expression& e) {
    const schedule::Plan& plan = e.plan;
    if (plan.effective_shard_degree() > 1 && plan.sharding != schedule::Sharding::optimizer)
        e.refuse("sharding", fmt::format("\"{}\"", schedule::name_of(plan.sharding)),
                 "its distributed optimizer shards the optimizer's state; its FSDP modes change names "
                 "between releases",
                 "set sharding = \"optimizer\", or export to torchtitan, deepspeed or sagemaker-smp-v2");
    if (plan.shards(schedule::Sharding::optimizer) && plan.overlaps_parameter_gathering &&
        !plan.overlaps_gradient_reduction)
        e.refuse("overlaps_parameter_gathering", "true", "--overlap-param-gather needs --overlap-grad-reduce",
                 "set overlaps_gradient_reduction = true, or this to false");
}

void refuse_precision(Expression& e) {
    const schedule::Precision& p = e.plan.precision;
    const bool is_low = p.compute == core::DataType::fp16 || p.compute == core::DataType::bf16;
    const bool is_fp8 = p.compute == core::DataType::fp8 && p.parameters == core::DataType::bf16;
    const bool has_gradients = p.gradients == p.parameters || p.gradients == core::DataType::fp32;
    const bool is_mixed =
        p.has_master_parameters && has_gradients && ((is_low && p.parameters == p.compute) || is_fp8);
    if (!is_mixed && p.compute != core::DataType::fp32) e.require_plain_precision();
}

}  // namespace

std::pair<const char*, int> megatron_full_recomputation(const schedule::Plan& plan) {
    if (plan.recompute_layers > 0) return {"block", plan.recompute_layers};
    return {"uniform", 1};
}

namespace {

const char* context_words_of_megatron(schedule::ContextCommunication communication) {
    switch (communication) {
        case schedule::ContextCommunication::all_gather: return "all_gather";
        case schedule::ContextCommunication::all_to_all: return "a2a";
        case schedule::ContextCommunication::ring: return "p2p";
    }
    return "";
}

}  // namespace

std::vector<MegatronField> megatron_parallelism(const schedule::Plan& plan) {
    std::vector<MegatronField> fields = {{"tensor_model_parallel_size", plan.layout.tensor},
                                         {"pipeline_model_parallel_size", plan.layout.pipeline}};
    if (plan.layout.context > 1) {
        fields.emplace_back("context_parallel_size", plan.layout.context);
        fields.emplace_back("cp_comm_type", context_words_of_megatron(plan.context_communication));
    }
    if (plan.layout.expert > 1) fields.emplace_back("expert_model_parallel_size", plan.layout.expert);
    return fields;
}

void refuse_beyond_megatron(Expression& e, const TransformerShape& shape, const std::string& target,
                            core::Diagnostics& diagnostics) {
    for (const core::Unsupported& unsupported : shape.unsupported)
        diagnostics.error({e.source.file.path, 0, 0}, "model",
                          fmt::format("the model cannot be expressed by {}: {}", target, unsupported.reason),
                          "choose another model or target");
    refuse_schedules(e);
    refuse_sharding(e);
    e.refuse_offload();
    refuse_precision(e);
    if (const auto heads = e.shared_heads())
        e.warn("tensor_parallel",
               fmt::format("{} ranks share {} heads of keys and values: Megatron-core does so since 0.16",
                           e.plan.layout.tensor, *heads),
               "older versions ask for a divisor of the heads");
    const schedule::Optimizer& o = e.plan.optimizer;
    if (o.kind == schedule::OptimizerKind::lamb ||
        (o.kind == schedule::OptimizerKind::adam && o.weight_decay != 0))
        diagnostics.error(
            {e.source.file.path, 0, 0}, "training.optimizer",
            fmt::format(
                "optimizer = \"{}\" cannot be expressed by Megatron-LM: it has AdamW (\"adam\") and SGD",
                schedule::name_of(o.kind)),
            "set optimizer = \"adamw\"");
}

}  // namespace interop
