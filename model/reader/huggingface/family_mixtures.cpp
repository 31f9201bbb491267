// Families with mixtures of experts.
#include "model/reader/huggingface/family_specials.h"

#include <algorithm>

#include <fmt/core.h>

#include "model/reader/huggingface/family_rule.h"

namespace model::family {

namespace {

// Mixtures are the layers that decoder_sparse_step divides, counted from one, but for mlp_only_layers.
void sparse_layers(ConfigMapper& m) {
    const std::int64_t step = m.integer("decoder_sparse_step", 1, {0, layer_range.greatest});
    const std::vector<std::int64_t> dense = m.has("mlp_only_layers")
                                                ? m.integers("mlp_only_layers", {0, layer_range.greatest})
                                                : std::vector<std::int64_t>();
    const std::int64_t layers = described(m, "layers").value_or(0);
    std::vector<std::int64_t> mixtures;
    for (std::int64_t layer = 0; layer < layers; ++layer)
        if (step > 0 && (layer + 1) % step == 0 &&
            std::find(dense.begin(), dense.end(), layer) == dense.end())
            mixtures.push_back(layer);
    if (mixtures.empty()) m.put("experts", std::int64_t(0), "decoder_sparse_step");
    else if (std::ssize(mixtures) < layers) put_layers(m, "mixture_layers", mixtures, "decoder_sparse_step");
    m.assume("experts are loaded evenly; the router's auxiliary loss costs nothing beside them");
}

void experts(ConfigMapper& m, const char* key, std::int64_t fallback) {
    const char* name = !m.has(key) && m.has("num_local_experts") ? "num_local_experts" : key;
    m.integer_or(name, "experts", fallback, expert_range);
}

}  // namespace

void qwen2_moe(ConfigMapper& m) {
    qwen(m);
    experts(m, "num_experts", 60);
    m.put("shared_expert_gate", true, "shared_expert_intermediate_size");
    sparse_layers(m);
}

void qwen3_moe(ConfigMapper& m) {
    qwen(m);
    experts(m, "num_experts", 128);
    sparse_layers(m);
}

// Latent attention, then dense layers, then mixtures with shared experts.
void deepseek(ConfigMapper& m) {
    rotary(m);
    const std::int64_t without = m.integer("qk_nope_head_dim", 128, head_dimension_range),
                       rotated = m.integer("qk_rope_head_dim", 64, head_dimension_range);
    m.put("head_dimension", without + rotated, "qk_nope_head_dim");
    m.put("rotary_dimension", rotated, "qk_rope_head_dim");
    m.put("rotary_fraction", 1.0, "qk_rope_head_dim");
    if (m.has("num_key_value_heads") && described(m, "heads") &&
        m.integer("num_key_value_heads", 0, head_range) != *described(m, "heads"))
        m.refuse("num_key_value_heads", "num_key_value_heads differs from num_attention_heads",
                 "latent attention has keys for every head: give the same number");
    const std::int64_t shared = m.integer("n_shared_experts", 0, {0, expert_range.greatest});
    if (const auto width = described(m, "expert_ffn"); width && shared > 0)
        m.put("shared_expert_ffn", shared * *width, "n_shared_experts");
    if (m.has("n_group")) {
        m.required_integer("n_group", "expert_groups", expert_range);
        m.optional_integer("topk_group", "chosen_groups", expert_range);
    }
    m.harmless("topk_group");
    if (m.has("num_nextn_predict_layers"))
        m.assume(
            "modules of multi-token prediction are left out, as transformers leaves them out: "
            "prediction_layers of a description adds them");
    if (m.integer("moe_layer_freq", 1, {1, layer_range.greatest}) != 1)
        m.refuse("moe_layer_freq", "mixtures in some of the later layers only are not supported",
                 "only moe_layer_freq = 1 can be modelled");
    m.assume("experts are loaded evenly");
}

void olmoe(ConfigMapper& m) {
    olmo(m);
    experts(m, "num_experts", 64);
    m.assume("experts are loaded evenly");
}

void gpt_oss(ConfigMapper& m) {
    m.rotary(150000.0);
    windows_by_kind(m, 2);
    m.put("expert_activation_limit", m.real("swiglu_limit", 7.0, {1e-3, 1e9}), "swiglu_limit");
    m.assume("experts are loaded evenly");
}

void glm4_moe(ConfigMapper& m) {
    half_rotary(m);
    const auto hidden = described(m, "hidden"), heads = described(m, "heads");
    if (!m.has("head_dim") && hidden && heads && *heads <= *hidden)
        m.put("head_dimension", *hidden / *heads, "head_dim");  // rounded down, as its class does
    if (m.boolean("use_qk_norm", false)) m.put("query_key_norm", "per_head", "use_qk_norm");
    const std::int64_t shared = m.integer("n_shared_experts", 1, {0, expert_range.greatest});
    if (const auto width = described(m, "expert_ffn"); width && shared > 0)
        m.put("shared_expert_ffn", shared * *width, "n_shared_experts");
    m.integer_or("n_group", "expert_groups", 1, expert_range);
    m.integer_or("topk_group", "chosen_groups", 1, expert_range);
    m.harmless("num_nextn_predict_layers");
    m.assume("experts are loaded evenly; modules of multi-token prediction are left out");
}

void phimoe(ConfigMapper& m) {
    m.rotary(1e6);
    m.optional_integer("sliding_window", "window", token_range);
    m.put("normalized_expert_weights", false, "num_local_experts");
    m.harmless("input_jitter_noise");
    m.assume("experts are loaded evenly");
}

void dbrx(ConfigMapper& m) {
    m.rotary(10000.0);
    m.harmless("num_key_value_heads");
    if (const Value* table = m.table("attn_config")) {
        core::TableReader attention(*table, "attn_config", m.diagnostics());
        m.put("kv_heads", attention.integer("kv_n_heads", 1, head_range), "attn_config");
        if (const auto base = attention.optional_real("rope_theta", {1, 1e12}))
            m.put("rotary_base", *base, "attn_config");
        const Value* limit = table->find("clip_qkv");
        if (limit && !limit->is_null()) m.put("clip_qkv", true, "attn_config");
    } else {
        m.put("kv_heads", std::int64_t(1), "attn_config");
    }
    const Value none = Value::table();
    const Value* table = m.table("ffn_config");
    core::TableReader mlp(table ? *table : none, "ffn_config", m.diagnostics());
    m.put("ffn", mlp.integer("ffn_hidden_size", 3584, width_range), "ffn_config");
    m.put("experts", mlp.integer("moe_num_experts", 4, expert_range), "ffn_config");
    m.put("experts_per_token", mlp.integer("moe_top_k", 1, expert_range), "ffn_config");
    if (const Value* activation = mlp.optional_table("ffn_act_fn"))
        if (const Value* name = activation->find("name");
            name && name->is_string() && name->string() != "silu")
            m.refuse("ffn_config", fmt::format("ffn_act_fn = {} is not supported", name->string()),
                     "supported: silu");
    m.assume("experts are loaded evenly");
}

void llama4(ConfigMapper& m) {
    m.rotary(500000.0);
    unrotated_layers(m, 4);
    if (m.boolean("use_qk_norm", true)) {
        m.put("query_key_norm", "per_head", "use_qk_norm");
        m.put("query_key_norm_scales", "none", "use_qk_norm");
    }
    m.integer_or("attention_chunk_size", "window", 8192, token_range);
    m.put("chunked_windows", true, "attention_chunk_size");
    // Layers without positions see everything, the others a chunk.
    const Value* unrotated = m.description.find("unrotated_layers");
    std::vector<std::int64_t> chunked, mixtures;
    const std::int64_t layers = described(m, "layers").value_or(0);
    for (std::int64_t layer = 0; layer < layers; ++layer) {
        bool is_global = false;
        if (unrotated)
            for (const Value& item : unrotated->items()) is_global = is_global || item.integer() == layer;
        if (!is_global) chunked.push_back(layer);
    }
    m.harmless("layer_types");
    if (!chunked.empty()) put_layers(m, "window_layers", chunked, "attention_chunk_size");
    else m.put("window", std::int64_t(0), "attention_chunk_size");
    const std::int64_t step = m.integer("interleave_moe_layer_step", 1, layer_range);
    if (m.has("moe_layers")) mixtures = m.integers("moe_layers", {0, layer_range.greatest});
    else
        for (std::int64_t layer = step - 1; layer < layers; layer += step) mixtures.push_back(layer);
    if (mixtures.empty()) m.put("experts", std::int64_t(0), "moe_layers");
    else if (std::ssize(mixtures) < layers) put_layers(m, "mixture_layers", mixtures, "moe_layers");
    if (const auto width = described(m, "expert_ffn"))
        m.put("shared_expert_ffn", *width, "intermediate_size");
    m.assume("experts are loaded evenly, and work on the tokens that chose them only");
}

}  // namespace model::family
