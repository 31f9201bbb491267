#include "interop/megatron/rules.h"

#include <algorithm>
#include <utility>

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

// A norm that Transformer Engine fuses with the product behind it is not run again: it is a layer of its own
// before latent attention and before experts (megatron/core/models/gpt/gpt_layer_specs.py, 0.20.0).
void refuse_modules(Expression& e, const TransformerShape& shape) {
    using schedule::RecomputeModule;
    e.refuse_recompute_module(RecomputeModule::activation,
                              "activations run again in experts alone (moe_act)");
    const bool has_norms_apart = shape.is_latent() && shape.experts > 0;
    if (!has_norms_apart)
        e.refuse_recompute_module(
            RecomputeModule::layernorm,
            "norms are fused with the products behind them, but before latent attention and experts");
    if (e.plan.precision.compute != core::DataType::fp8) return;
    const char* const why = "neither norms nor activations of experts run again with delayed scales of fp8";
    if (has_norms_apart) e.refuse_recompute_module(RecomputeModule::layernorm, why);
    e.refuse_recompute_module(RecomputeModule::moe_act, why);
}

// Megatron-core's TransformerConfig (0.20.0) on biases, Transformer Engine (d0067d0da6, 2026-08-22) on the
// rest.
void refuse_combinations(Expression& e, const TransformerShape& shape) {
    using Communication = schedule::ContextCommunication;
    if (shape.experts > 0 && shape.has_linear_bias && e.plan.layout.expert_tensor() > 1)
        e.refuse("tensor_parallel", std::to_string(e.plan.layout.tensor),
                 "it divides no experts that have biases",
                 "set expert_tensor_parallel = 1, with an expert_parallel that is a multiple, or "
                 "tensor_parallel = 1");
    if (shape.has_sinks) {
        const char* const why = "attention sinks go with exchanged heads alone";
        e.refuse_communication(Communication::all_gather, why, Communication::all_to_all);
        e.refuse_communication(Communication::ring, why, Communication::all_to_all);
    } else if (shape.window > 0) e.refuse_communication(Communication::ring, "a ring has no sliding windows");
    refuse_modules(e, shape);
    e.refuse_recompute_layers_by_stage("--recompute-num-layers is one number for all stages");
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

bool uses_distributed_optimizer(const schedule::Plan& plan) {
    return plan.shards(schedule::Sharding::optimizer) || plan.updates_on_hosts();
}

std::vector<MegatronField> megatron_parallelism(const schedule::Plan& plan) {
    std::vector<MegatronField> fields = {{"tensor_model_parallel_size", plan.layout.tensor},
                                         {"pipeline_model_parallel_size", plan.layout.pipeline}};
    if (plan.layout.context > 1) {
        fields.emplace_back("context_parallel_size", plan.layout.context);
        fields.emplace_back("cp_comm_type", context_words_of_megatron(plan.context_communication));
    }
    if (plan.layout.expert_ranks() > 1)
        fields.emplace_back("expert_model_parallel_size", plan.layout.expert_ranks());
    if (plan.layout.spreads_experts_over_tensor())
        fields.emplace_back("expert_tensor_parallel_size", plan.layout.expert_tensor());
    return fields;
}

namespace {

class Properties {
public:
    explicit Properties(const TransformerShape& shape) : shape_(shape) {}

    std::vector<MegatronProperty> all() {
        attention();
        if (shape_.is_latent()) latent();
        if (shape_.experts > 0) mixture();
        return std::move(all_);
    }

private:
    // The argument is called as the field is, with dashes.
    static std::string dashed(std::string field) {
        std::replace(field.begin(), field.end(), '_', '-');
        return "--" + field;
    }
    void flag(const std::string& field) { all_.push_back({dashed(field), field, "True"}); }
    template <class Number>
    void number(const std::string& field, Number value) {
        all_.push_back({fmt::format("{} {}", dashed(field), value), field, fmt::format("{}", value)});
    }
    void word(const std::string& field, const char* value) {
        all_.push_back({fmt::format("{} {}", dashed(field), value), field, fmt::format("\"{}\"", value)});
    }

    void attention() {
        if (shape_.has_query_key_norm || shape_.is_latent()) flag("qk_layernorm");
        if (shape_.has_sinks) word("softmax_type", "learnable");
        if (shape_.window == 0) return;
        const std::int64_t before = shape_.window - 1;  // beside the token itself
        all_.push_back(
            {fmt::format("--window-size {},0", before), "window_size", fmt::format("({}, 0)", before)});
        if (shape_.global_interval > 0) number("window_attn_skip_freq", shape_.global_interval);
    }

    void latent() {
        flag("multi_latent_attention");
        if (shape_.query_rank > 0) number("q_lora_rank", shape_.query_rank);
        else all_.push_back({"", "q_lora_rank", "None"});
        number("kv_lora_rank", shape_.key_value_rank);
        number("qk_head_dim", shape_.head_dimension - shape_.rotary_dimension);
        number("qk_pos_emb_head_dim", shape_.rotary_dimension);
        number("v_head_dim", shape_.value_dimension);
        // Its own default is YaRN, and its fused rotation is of YaRN alone.
        word("rope_type", "rope");
        all_.push_back({"--no-rope-fusion", "apply_rope_fusion", "False"});
    }

    void mixture() {
        if (shape_.expert_ffn != shape_.ffn) number("moe_ffn_hidden_size", shape_.expert_ffn);
        layers();
        if (shape_.shared_ffn > 0) number("moe_shared_expert_intermediate_size", shape_.shared_ffn);
        if (shape_.has_shared_gate) flag("moe_shared_expert_gate");
        if (shape_.has_sigmoid_scores) word("moe_router_score_function", "sigmoid");
        if (shape_.has_plain_weights) flag("moe_router_pre_softmax");
        if (shape_.routed_scale != 1) number("moe_router_topk_scaling_factor", shape_.routed_scale);
        if (shape_.expert_groups > 1) {
            number("moe_router_num_groups", shape_.expert_groups);
            number("moe_router_group_topk", shape_.chosen_groups);
        }
        if (!shape_.activation_limit) return;
        all_.push_back({"--quick-geglu", "", ""});  // a field of each provider
        number("glu_linear_offset", 1.0);
        number("activation_func_clamp_value", *shape_.activation_limit);
    }

    // Which layers are mixtures, where not all are: [0]*3+[1]*58.
    void layers() {
        const std::vector<char>& is_mixture = shape_.is_mixture;
        if (std::find(is_mixture.begin(), is_mixture.end(), 0) == is_mixture.end()) return;
        std::string list;
        for (auto begin = is_mixture.begin(); begin != is_mixture.end();) {
            const auto end = std::find(begin, is_mixture.end(), *begin ? 0 : 1);
            list += fmt::format("{}[{}]*{}", list.empty() ? "" : "+", int(*begin), end - begin);
            begin = end;
        }
        all_.push_back({fmt::format("--moe-layer-freq {}", list), "moe_layer_freq", list});
    }

    const TransformerShape& shape_;
    std::vector<MegatronProperty> all_;
};

}  // namespace

std::vector<MegatronProperty> megatron_properties(const TransformerShape& shape) {
    return Properties(shape).all();
}

namespace {

// HybridDeviceOptimizer takes the path of the precision-aware optimizer, which is a distributed one.
void refuse_optimizer_offload(Expression& e) {
    if (!e.plan.updates_on_hosts()) return;
    if (e.plan.layout.data > 1 && !e.plan.shards(schedule::Sharding::optimizer))
        e.refuse("optimizer_offload", "host", "its optimizer on the host is a distributed one",
                 "set sharding = \"optimizer\", or optimizer_offload = \"none\"");
    if (e.plan.optimizer.kind == schedule::OptimizerKind::sgd)
        e.refuse("optimizer_offload", "host", "its optimizer on the host is Adam",
                 "use optimizer = \"adamw\", or set optimizer_offload = \"none\"");
}

}  // namespace

void refuse_beyond_megatron(Expression& e, const TransformerShape& shape, const std::string& target,
                            core::Diagnostics& diagnostics) {
    for (const core::Unsupported& unsupported : shape.unsupported)
        diagnostics.error({e.source.file.path, 0, 0}, "model",
                          fmt::format("the model cannot be expressed by {}: {}", target, unsupported.reason),
                          "choose another model or target");
    refuse_schedules(e);
    refuse_sharding(e);
    refuse_combinations(e, shape);
    e.refuse_activation_offload();
    refuse_optimizer_offload(e);
    e.refuse_parameter_offload();
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
