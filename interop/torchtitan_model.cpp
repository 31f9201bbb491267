#include "interop/torchtitan_model.h"

#include <algorithm>
#include <utility>

#include <fmt/core.h>

#include "core/value.h"
#include "interop/source_text.h"

namespace interop {

namespace {

constexpr const char* norm_source = "RMSNorm.Config(normalized_shape=DIM, eps=EPSILON, param_init=NORM)";
constexpr const char* head_norm_source =
    "RMSNorm.Config(normalized_shape=HEAD_DIM, eps=EPSILON, param_init=NORM)";

// Weights of the chosen experts add up to one, and no bias balances them.
std::string mixture_source(const TransformerShape& shape) {
    const PythonCall router = PythonCall("make_router_config")
                                  .with_source("dim", "DIM")
                                  .with("num_experts", shape.experts)
                                  .with_source("gate_param_init", "LINEAR")
                                  .with("top_k", shape.experts_per_token)
                                  .with("score_func", "softmax")
                                  .with("route_norm", true);
    const PythonCall routed =
        PythonCall("make_routed_experts_config")
            .with_source("dim", "DIM")
            .with_source("hidden_dim", "FFN")
            .with("num_experts", shape.experts)
            .with("top_k", shape.experts_per_token)
            .with_source("param_init",
                         "{\"w1_EFD\": LINEAR[\"weight\"], \"w2_EDF\": depth[\"weight\"], "
                         "\"w3_EFD\": LINEAR[\"weight\"]}")
            .with("comm_backend", "standard");
    return PythonCall("make_moe_config")
        .with("num_experts", shape.experts)
        .with_source("router", router.text(3))
        .with_source("routed_experts", routed.text(3))
        .with_source("load_balance_coeff", "None")
        .text(2);
}

// All layers of DeepSeek-V3's, by its own function.
std::string latent_layers_source(const TransformerShape& shape) {
    const auto dense = std::count(shape.is_mixture.begin(), shape.is_mixture.end(), 0);
    const PythonCall rope = PythonCall("ComplexRoPE.Config")
                                .with("dim", shape.rotary_dimension)
                                .with_source("max_seq_len", "SEQUENCE")
                                .with("theta", shape.rotary_base);
    PythonCall layers("build_mla_moe_layers");
    layers.with_source("n_layers", "LAYERS")
        .with("n_dense_layers", std::int64_t(dense))
        .with_source("dim", "DIM")
        .with_source("n_heads", "HEADS")
        .with("q_lora_rank", shape.query_rank)
        .with("kv_lora_rank", shape.key_value_rank)
        .with("qk_nope_head_dim", shape.head_dimension - shape.rotary_dimension)
        .with("qk_rope_head_dim", shape.rotary_dimension)
        .with("v_head_dim", shape.value_dimension)
        .with("mscale", 1.0)
        .with_source("dense_hidden_dim", "FFN")
        .with("moe_hidden_dim", shape.expert_ffn)
        .with("num_experts", shape.experts)
        .with("num_shared_experts", shape.shared_ffn / shape.expert_ffn)
        .with("router_top_k", shape.experts_per_token)
        .with("router_score_func", shape.has_sigmoid_scores ? "sigmoid" : "softmax");
    if (shape.expert_groups > 1)
        layers.with("router_num_expert_groups", shape.expert_groups)
            .with("router_num_limited_groups", shape.chosen_groups);
    layers.with("router_route_scale", shape.routed_scale)
        .with("router_route_norm", !shape.has_plain_weights)
        .with("attn_backend", "flex")
        .with("moe_comm_backend", "standard")
        .with_source("non_blocking_capacity_factor", "None")
        .with_source("linear_init", "LINEAR")
        .with_source("norm_init", "NORM")
        .with_source("depth_init", "depth")
        .with_source("depth_experts_init", "depth_of_experts")
        .with_source("rope", rope.text(3));
    return layers.text(2);
}

std::string constants_source(const TransformerShape& shape) {
    return fmt::format(
        "DIM, LAYERS, HEADS, KV_HEADS, HEAD_DIM = {}, {}, {}, {}, {}\n"
        "FFN, VOCABULARY, SEQUENCE, EPSILON = {}, {}, {}, {}\n\n"
        "LINEAR = {{\"weight\": partial(nn.init.trunc_normal_, std=0.02), \"bias\": nn.init.zeros_}}\n"
        "NORM = {{\"weight\": nn.init.ones_}}\n\n\n",
        shape.hidden, shape.layers, shape.heads, shape.kv_heads, shape.head_dimension, shape.ffn,
        shape.vocabulary, shape.sequence_length, python_literal(core::Value(shape.epsilon)));
}

std::string latent_source(const TransformerShape& shape) {
    return constants_source(shape) +
           "def depth(index):\n    return {\"weight\": partial(nn.init.trunc_normal_, "
           "std=depth_scaled_std(0.02, index)),\n            \"bias\": nn.init.zeros_}\n\n\n"
           "def depth_of_experts(index):\n    return {\"w1_EFD\": LINEAR[\"weight\"], "
           "\"w2_EDF\": depth(index)[\"weight\"],\n            \"w3_EFD\": depth(index)[\"weight\"]}";
}

std::string layer_source(const TransformerShape& shape) {
    std::string text = constants_source(shape);
    text +=
        "def layer(index):\n    depth = {\"weight\": partial(nn.init.trunc_normal_, "
        "std=depth_scaled_std(0.02, "
        "index)),\n             \"bias\": nn.init.zeros_}\n    return ";
    const TorchtitanFamily& family = torchtitan_family(shape);
    const PythonCall rope = PythonCall(fmt::format("{}.Config", family.rope))
                                .with_source("dim", "HEAD_DIM")
                                .with_source("max_seq_len", "SEQUENCE")
                                .with("theta", shape.rotary_base);
    PythonCall attention = PythonCall("make_gqa_config")
                               .with_source("dim", "DIM")
                               .with_source("n_heads", "HEADS")
                               .with_source("n_kv_heads", "KV_HEADS")
                               .with_source("head_dim", "HEAD_DIM")
                               .with_source("wqkv_param_init", "LINEAR")
                               .with_source("wo_param_init", "depth")
                               .with_source("inner_attention", "get_attention_config(\"flex\")")
                               .with("fuse_qkv", true)
                               .with_source("rope", rope.text(3));
    if (shape.has_query_key_norm) attention.with_source("qk_norm", head_norm_source);
    PythonCall block = PythonCall(fmt::format("{}TransformerBlock.Config", family.prefix))
                           .with_source("attention_norm", norm_source)
                           .with_source("ffn_norm", norm_source)
                           .with_source("attention", attention.text(2));
    if (shape.experts > 0) return text + block.with_source("moe", mixture_source(shape)).text(1);
    const PythonCall feed_forward = PythonCall("make_ffn_config")
                                        .with_source("dim", "DIM")
                                        .with_source("hidden_dim", "FFN")
                                        .with_source("w1_param_init", "LINEAR")
                                        .with_source("w2w3_param_init", "depth");
    return text + block.with_source("feed_forward", feed_forward.text(2)).text(1);
}

}  // namespace

const TorchtitanFamily& torchtitan_family(const TransformerShape& shape) {
    static constexpr TorchtitanFamily llama{"llama3", "Llama3", "parallelize_llama", "ComplexRoPE"},
        qwen{"qwen3", "Qwen3", "parallelize_qwen3", "CosSinRoPE"},
        deepseek{"deepseek_v3", "DeepSeekV3", "parallelize_deepseekv3", "ComplexRoPE"};
    return shape.is_latent() ? deepseek : shape.has_query_key_norm ? qwen : llama;
}

std::vector<core::Unsupported> torchtitan_lacks(const TransformerShape& shape) {
    const bool is_latent = shape.is_latent(), is_qwen = !is_latent && shape.has_query_key_norm;
    TransformerShape rest = shape;
    if (is_qwen) rest.has_query_key_norm = false;
    if (is_latent) {
        const TransformerShape plain;
        rest.key_value_rank = rest.shared_ffn = 0;
        rest.is_mixture.clear();
        rest.has_sigmoid_scores = rest.has_plain_weights = false;
        rest.routed_scale = plain.routed_scale;
        rest.expert_groups = plain.expert_groups;
    }
    std::vector<core::Unsupported> reasons = beyond_plain(rest);
    const bool begins_dense = std::is_sorted(shape.is_mixture.begin(), shape.is_mixture.end());
    const bool shares_whole_experts =
        shape.experts > 0 && shape.shared_ffn > 0 && shape.shared_ffn % shape.expert_ffn == 0;
    const std::pair<bool, const char*> missing[] = {
        {shape.experts > 0 && !is_qwen && !is_latent, "a mixture of experts that is no Qwen3 or DeepSeek-V3"},
        {is_latent && !shares_whole_experts,
         "latent attention without experts and an expert of all tokens, as wide as some of them"},
        {is_latent && (!begins_dense || shape.has_shared_gate), "other mixtures than DeepSeek-V3's"},
        {shape.capacity_factor > 0, "a capacity of experts"},
        {shape.auxiliary_loss > 0, "an auxiliary loss"},
        {!shape.is_rotary, "learned positions"},
        {shape.rotary_fraction != 1 && !is_latent, "positions that turn a part of each head"},
        {!shape.is_rms, "LayerNorm"},
        {!shape.is_gated_silu, "a feed-forward without a gate"},
        {shape.has_qkv_bias || shape.has_linear_bias, "biases"},
        {shape.hidden_dropout > 0 || shape.attention_dropout > 0, "dropout"}};
    for (const auto& [is_there, what] : missing)
        if (is_there) reasons.push_back({what});
    return reasons;
}

// As torchtitan.models.llama3, qwen3 and deepseek_v3 build their own flavours.
std::string torchtitan_model(const TransformerShape& shape) {
    std::string text = shape.is_latent() ? latent_source(shape) : layer_source(shape);
    text += "\n\n\ndef model():\n    spread = DIM**-0.5\n    return ";
    const PythonCall embedding =
        PythonCall("Embedding.Config")
            .with_source("num_embeddings", "VOCABULARY")
            .with_source("embedding_dim", "DIM")
            .with_source("param_init",
                         shape.is_tied ? "{\"weight\": skip_param_init}" : "{\"weight\": nn.init.normal_}");
    const PythonCall head =
        PythonCall("Linear.Config")
            .with_source("in_features", "DIM")
            .with_source("out_features", "VOCABULARY")
            .with_source(
                "param_init",
                "{\"weight\": partial(nn.init.trunc_normal_, std=spread, a=-3 * spread, b=3 * spread)}");
    text += PythonCall(fmt::format("{}Model.Config", torchtitan_family(shape).prefix))
                .with_source("dim", "DIM")
                .with_source("vocab_size", "VOCABULARY")
                .with("enable_weight_tying", shape.is_tied)
                .with_source("tok_embeddings", embedding.text(2))
                .with_source("norm", norm_source)
                .with_source("lm_head", head.text(2))
                .with_source("layers", shape.is_latent() ? latent_layers_source(shape)
                                                         : "[layer(index) for index in range(LAYERS)]")
                .text(1);
    return text + "\n\n\n";
}

std::string torchtitan_imports(const TransformerShape& shape) {
    const TorchtitanFamily& family = torchtitan_family(shape);
    const std::string helpers = "from torchtitan.models.common.config_utils import ";
    const std::string built =
        shape.is_latent() ? "from torchtitan.models.deepseek_v3 import build_mla_moe_layers\n"
        : shape.experts > 0
            ? helpers + "get_attention_config\n" + helpers + "make_gqa_config, make_moe_config\n" + helpers +
                  "make_routed_experts_config, make_router_config\n"
            : helpers + "get_attention_config\n" + helpers + "make_ffn_config, make_gqa_config\n";
    const std::string block =
        shape.is_latent() ? std::string() : fmt::format(", {}TransformerBlock", family.prefix);
    return fmt::format(
        "from functools import partial\n\n"
        "import torch.nn as nn\n"
        "from torchtitan.components.loss import CrossEntropyLoss\n"
        "from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer\n"
        "from torchtitan.components.optimizer import ParamGroupConfig\n"
        "from torchtitan.config import DebugConfig, ParallelismConfig, TrainingConfig\n"
        "from torchtitan.distributed.activation_checkpoint import FullAC\n"
        "from torchtitan.distributed.pipeline_parallel import pipeline_llm\n"
        "from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader\n"
        "from torchtitan.models.common import {2}, Embedding, Linear, RMSNorm\n"
        "{4}"
        "from torchtitan.models.common.param_init import depth_scaled_std, skip_param_init\n"
        "from torchtitan.models.{0}.model import {1}Model{5}\n"
        "from torchtitan.models.{0}.parallelize import {3}\n"
        "from torchtitan.models.{0}.state_dict_adapter import {1}StateDictAdapter\n"
        "from torchtitan.protocols.model_spec import ModelSpec\n"
        "from torchtitan.trainer import Trainer\n\n",
        family.name, family.prefix, family.rope, family.parallelize, built, block);
}

}  // namespace interop
