#include "interop/torchtitan_model.h"

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

std::string layer_source(const TransformerShape& shape) {
    std::string text = fmt::format(
        "DIM, LAYERS, HEADS, KV_HEADS, HEAD_DIM = {}, {}, {}, {}, {}\n"
        "FFN, VOCABULARY, SEQUENCE, EPSILON = {}, {}, {}, {}\n\n"
        "LINEAR = {{\"weight\": partial(nn.init.trunc_normal_, std=0.02), \"bias\": nn.init.zeros_}}\n"
        "NORM = {{\"weight\": nn.init.ones_}}\n\n\n",
        shape.hidden, shape.layers, shape.heads, shape.kv_heads, shape.head_dimension, shape.ffn,
        shape.vocabulary, shape.sequence_length, python_literal(core::Value(shape.epsilon)));
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
        qwen{"qwen3", "Qwen3", "parallelize_qwen3", "CosSinRoPE"};
    return shape.has_query_key_norm ? qwen : llama;
}

// As torchtitan.models.llama3 and qwen3 build their own flavours.
std::string torchtitan_model(const TransformerShape& shape) {
    std::string text = layer_source(shape);
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
                .with_source("layers", "[layer(index) for index in range(LAYERS)]")
                .text(1);
    return text + "\n\n\n";
}

std::string torchtitan_imports(const TransformerShape& shape) {
    const TorchtitanFamily& family = torchtitan_family(shape);
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
        "from torchtitan.models.common.config_utils import get_attention_config\n"
        "from torchtitan.models.common.config_utils import {4}\n"
        "from torchtitan.models.common.param_init import depth_scaled_std, skip_param_init\n"
        "from torchtitan.models.{0}.model import {1}Model, {1}TransformerBlock\n"
        "from torchtitan.models.{0}.parallelize import {3}\n"
        "from torchtitan.models.{0}.state_dict_adapter import {1}StateDictAdapter\n"
        "from torchtitan.protocols.model_spec import ModelSpec\n"
        "from torchtitan.trainer import Trainer\n\n",
        family.name, family.prefix, family.rope, family.parallelize,
        shape.experts > 0 ? "make_gqa_config, make_moe_config\n"
                            "from torchtitan.models.common.config_utils import make_routed_experts_config, "
                            "make_router_config"
                          : "make_ffn_config, make_gqa_config");
}

}  // namespace interop
