#include "model/reader/huggingface_families.h"

#include <algorithm>
#include <cmath>

#include <fmt/core.h>

#include "core/index/integers.h"
#include "model/reader/family_rule.h"

namespace model {

namespace {

Rules operator+(Rules a, const Rules& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

// Names that nearly all families share.
const Rules dimensions = {need("hidden_size", "hidden", hidden_range),
                          need("num_hidden_layers", "layers", layer_range),
                          need("num_attention_heads", "heads", head_range),
                          need("vocab_size", "vocabulary", vocabulary_range),
                          need("intermediate_size", "ffn", width_range),
                          need("max_position_embeddings", "max_positions", token_range),
                          real("attention_dropout", "attention_dropout", 0)};
const Rules grouped = {may("num_key_value_heads", "kv_heads", head_range)};
// Classes whose default is another number than that of the heads.
const Rules must_group = {need("num_key_value_heads", "kv_heads", head_range)};
const Rules head_dimension = {may("head_dim", "head_dimension", head_dimension_range)};
const Rules untied = {flag("tie_word_embeddings", "tied_embeddings", false)};
const Rules tied = {flag("tie_word_embeddings", "tied_embeddings", true)};
const Rules swiglu = {gated("hidden_act", "silu")};
// Four linears of attention with biases or without.
Rules attention_bias(bool fallback) {
    return {flag("attention_bias", "qkv_bias", fallback),
            flag("attention_bias", "attention_output_bias", fallback)};
}
Rules qkv_bias(const char* key, bool fallback) { return {flag(key, "qkv_bias", fallback)}; }
Rules rms(double epsilon) { return {real("rms_norm_eps", "epsilon", epsilon)}; }
Rules layer_norms(const char* key, const char* kind) {
    return {own("norm", kind), real(key, "epsilon", 1e-5)};
}
const Rules all_biases = {own("qkv_bias", true), own("attention_output_bias", true), own("mlp_bias", true)};
const Rules norms_per_head = {own("query_key_norm", "per_head")};
const Rules norms_of_all_heads = {own("query_key_norm", "all_heads")};
const Rules llama_like = dimensions + head_dimension + swiglu;

void rotary(ConfigMapper& m) { m.rotary(10000.0); }
void half_rotary(ConfigMapper& m) { m.rotary(10000.0, 0.5); }
void quarter_rotary(ConfigMapper& m) { m.rotary(10000.0, 0.25); }

// Qwen's rule: with use_sliding_window, layers from max_window_layers on, which layer_types spells out.
void qwen(ConfigMapper& m) {
    rotary(m);
    const bool uses = m.boolean("use_sliding_window", false);
    m.harmless("max_window_layers");
    m.harmless("layer_types");
    if (!uses || !m.has("sliding_window")) return m.harmless("sliding_window");
    if (m.has("layer_types")) return windows_by_kind(m, 0);
    m.required_integer("sliding_window", "window", token_range);
    m.required_integer("max_window_layers", "first_window_layer", {0, layer_range.greatest});
}

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

void gemma_embedding(ConfigMapper& m) {
    if (const auto hidden = described(m, "hidden"))
        m.put("embedding_scale", std::sqrt(static_cast<double>(*hidden)), "hidden_size");
}

// Gemma's first config files name the exact function and mean, as their class does, the approximation.
void gemma_activation(ConfigMapper& m) {
    const char* key = m.has("hidden_activation") ? "hidden_activation" : "hidden_act";
    m.activation(key, "gelu_pytorch_tanh", true);
    m.harmless("hidden_act");
}

void gemma(ConfigMapper& m) {
    rotary(m);
    gemma_embedding(m);
    gemma_activation(m);
}

void gemma_caps(ConfigMapper& m, double score_cap, double logit_cap) {
    const struct {
        const char *theirs, *ours;
        double fallback;
    } caps[] = {{"attn_logit_softcapping", "score_soft_cap", score_cap},
                {"final_logit_softcapping", "logit_soft_cap", logit_cap}};
    for (const auto& cap : caps)
        if (m.has(cap.theirs) || (m.is_absent(cap.theirs) && cap.fallback > 0))
            m.real(cap.theirs, cap.ours, cap.fallback, {1e-3, 1e9});
    const double scalar = m.real("query_pre_attn_scalar", 256, {1e-6, 1e9});
    m.put("score_scale", 1 / std::sqrt(scalar), "query_pre_attn_scalar");
}

void gemma2(ConfigMapper& m) {
    gemma(m);
    gemma_caps(m, 50, 30);
    windows_by_kind(m, 2);
}

void gemma3(ConfigMapper& m) {
    m.rotary_by_kind(1e6, m.real("rope_local_base_freq", 10000.0, {1, 1e12}));
    gemma_embedding(m);
    gemma_activation(m);
    gemma_caps(m, 0, 0);
    m.harmless("_sliding_window_pattern");
    windows_by_kind(m, m.integer("sliding_window_pattern", 6, layer_range));
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

const Rules latent = {may("q_lora_rank", "query_rank", {0, width_range.greatest}),
                      integer("kv_lora_rank", "key_value_rank", 512, width_range),
                      integer("v_head_dim", "value_dimension", 128, head_dimension_range),
                      flag("attention_bias", "latent_bias", false),
                      flag("attention_bias", "attention_output_bias", false),
                      own("qkv_bias", false),
                      harmless("qk_head_dim"),
                      harmless("head_dim"),
                      harmless("rope_interleave"),
                      harmless("ep_size"),
                      harmless("seq_aux"),
                      harmless("aux_loss_alpha"),
                      harmless("scoring_func"),
                      harmless("topk_method"),
                      harmless("num_nextn_predict_layers")};
Rules later_mixtures(std::int64_t dense, bool normalized) {
    return {need("moe_intermediate_size", "expert_ffn", width_range),
            need("n_routed_experts", "experts", expert_range),
            need("num_experts_per_tok", "experts_per_token", expert_range),
            integer("first_k_dense_replace", "dense_layers_first", dense, {0, layer_range.greatest}),
            flag("norm_topk_prob", "normalized_expert_weights", normalized),
            real("routed_scaling_factor", "routed_scale", 1.0)};
}

void clip(ConfigMapper& m) {
    if (m.has("clip_qkv")) m.put("clip_qkv", true, "clip_qkv");
}
void olmo(ConfigMapper& m) {
    rotary(m);
    clip(m);
}
void olmoe(ConfigMapper& m) {
    olmo(m);
    experts(m, "num_experts", 64);
    m.assume("experts are loaded evenly");
}
void olmo3(ConfigMapper& m) {
    m.rotary_by_kind(500000.0, 500000.0);
    windows_by_kind(m, 4);
}

void granite(ConfigMapper& m) {
    rotary(m);
    m.put("logit_scale", 1 / m.real("logits_scaling", 1.0, {1e-6, 1e9}), "logits_scaling");
}

// The last of every four layers has neither a window nor positions.
void cohere2(ConfigMapper& m) {
    rotary(m);
    m.harmless("sliding_window_pattern");
    windows_by_kind(m, m.integer("sliding_window_pattern", 4, layer_range));
    const Value* windows = m.description.find("window_layers");
    std::vector<std::int64_t> others;
    for (std::int64_t layer = 0; layer < described(m, "layers").value_or(0); ++layer) {
        bool has_window = false;
        if (windows)
            for (const Value& item : windows->items()) has_window = has_window || item.integer() == layer;
        if (!has_window) others.push_back(layer);
    }
    if (!others.empty()) put_layers(m, "unrotated_layers", others, "layer_types");
}

void query_key_layer_norm(ConfigMapper& m, const char* key, const char* kind, const char* scales) {
    if (!m.boolean(key, false)) return;
    m.put("query_key_norm", "per_head", key);
    m.put("query_key_norm_kind", kind, key);
    m.put("query_key_norm_scales", scales, key);
}
void cohere(ConfigMapper& m) {
    m.rotary(500000.0);
    query_key_layer_norm(m, "use_qk_norm", "layer_norm_without_shift", "own");
}
void phi(ConfigMapper& m) {
    half_rotary(m);
    query_key_layer_norm(m, "qk_layernorm", "layer_norm", "shared");
}
void stablelm(ConfigMapper& m) {
    quarter_rotary(m);
    query_key_layer_norm(m, "qk_layernorm", "layer_norm_without_shift", "own");
    if (m.boolean("use_parallel_residual", false))
        for (const char* key : {"parallel_residual", "shared_norm"})
            m.put(key, true, "use_parallel_residual");
}

void gpt_oss(ConfigMapper& m) {
    m.rotary(150000.0);
    windows_by_kind(m, 2);
    m.put("expert_activation_limit", m.real("swiglu_limit", 7.0, {1e-3, 1e9}), "swiglu_limit");
    m.assume("experts are loaded evenly");
}

// Global and local layers, from attention_layers or from pairs of a pattern and its repetitions.
void gpt_neo(ConfigMapper& m) {
    std::vector<std::string> kinds;
    const Value& config = m.config();
    if (const auto hidden = described(m, "hidden"))
        m.integer_or("intermediate_size", "ffn", 4 * *hidden, width_range);
    if (m.has("attention_layers")) kinds = m.strings("attention_layers");
    else if (m.has("attention_types") && config.find("attention_types")->is_array())
        for (const Value& part : config.find("attention_types")->items()) {
            if (!part.is_array() || part.size() != 2 || !part.items()[0].is_array() ||
                part.items()[1].kind() != Value::Kind::integer || part.items()[1].integer() < 0 ||
                part.items()[1].integer() > layer_range.greatest)
                return m.refuse("attention_types", "attention_types is no list of patterns and repetitions",
                                "write [[[\"global\", \"local\"], 12]]");
            for (std::int64_t i = 0; i < part.items()[1].integer(); ++i)
                for (const Value& kind : part.items()[0].items())
                    kinds.push_back(kind.is_string() ? kind.string() : "");
        }
    std::vector<std::int64_t> local;
    for (const std::int32_t layer : core::indices(kinds))
        if (kinds[layer] == "local") local.push_back(layer);
        else if (kinds[layer] != "global")
            m.refuse("attention_layers", "layers are \"global\" or \"local\"", "write one of the two");
    m.harmless("attention_types");
    if (local.empty()) return m.harmless("window_size");
    m.integer_or("window_size", "window", 256, token_range);
    put_layers(m, "window_layers", local, "attention_layers");
}

void falcon(ConfigMapper& m) {
    m.required_integer("num_hidden_layers", "n_layer", "layers", layer_range);
    m.required_integer("num_attention_heads", "n_head", "heads", head_range);
    const bool is_new = m.boolean("new_decoder_architecture", false),
               is_parallel = m.boolean("parallel_attn", true);
    const bool has_one_key = m.boolean("multi_query", true);
    if (is_new) m.required_integer("num_kv_heads", "n_head_kv", "kv_heads", head_range);
    else if (has_one_key) m.put("kv_heads", std::int64_t(1), "multi_query");
    m.harmless("num_kv_heads");
    m.harmless("n_head_kv");
    m.put("parallel_residual", is_parallel || is_new, "parallel_attn");
    if (is_new && !is_parallel)
        m.refuse("parallel_attn", "parallel_attn = false with new_decoder_architecture is not supported",
                 "set parallel_attn = true");
    const std::int64_t norms = m.integer("num_ln_in_parallel_attn", is_new ? 2 : 1, {1, 2});
    m.put("shared_norm", is_parallel && norms == 1, "num_ln_in_parallel_attn");
    if (m.boolean("alibi", false)) m.put("position_encoding", "alibi", "alibi");
    else m.rotary(10000.0);
    m.harmless("rope_theta");
    m.harmless("rope_parameters");
    if (const auto hidden = described(m, "hidden"))
        m.integer_or("ffn_hidden_size", "ffn", 4 * *hidden, width_range);
    const bool has_bias = m.boolean("bias", false);
    for (const char* key : {"qkv_bias", "attention_output_bias", "mlp_bias"}) m.put(key, has_bias, "bias");
    if (m.has("max_position_embeddings"))
        m.required_integer("max_position_embeddings", "max_positions", token_range);
    else m.put("max_positions", std::int64_t(2048), "max_position_embeddings");
}

void gpt_bigcode(ConfigMapper& m) {
    if (m.boolean("multi_query", true)) m.put("kv_heads", std::int64_t(1), "multi_query");
    if (const auto hidden = described(m, "hidden")) m.integer_or("n_inner", "ffn", 4 * *hidden, width_range);
    m.must_be("scale_attn_weights", true, true, "unscaled attention scores");
    m.must_be("add_cross_attention", false, false, "cross-attention in every layer");
}

void starcoder2(ConfigMapper& m) {
    rotary(m);
    const bool has_bias = m.boolean("use_bias", true);
    for (const char* key : {"qkv_bias", "attention_output_bias", "mlp_bias"})
        m.put(key, has_bias, "use_bias");
    m.optional_integer("sliding_window", "window", token_range);
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

void smollm3(ConfigMapper& m) {
    m.rotary(2e6);
    unrotated_layers(m, 4);
    if (m.boolean("use_sliding_window", false)) windows_by_kind(m, 0);
    m.harmless("layer_types");
    m.harmless("sliding_window");
    m.harmless("max_window_layers");
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

void modernbert(ConfigMapper& m) {
    m.rotary_by_kind(m.real("global_rope_theta", 160000.0, {1, 1e12}),
                     m.real("local_rope_theta", 10000.0, {1, 1e12}));
    const bool has_attention_bias = m.boolean("attention_bias", false);
    for (const char* key : {"qkv_bias", "attention_output_bias"})
        m.put(key, has_attention_bias, "attention_bias");
    m.put("norm", m.boolean("norm_bias", false) ? "layer_norm" : "layer_norm_without_shift", "norm_bias");
    // Half of local_attention on either side, and the token itself.
    const std::int64_t window = m.integer("local_attention", 128, token_range) / 2 * 2 + 1;
    const std::int64_t interval = m.integer("global_attn_every_n_layers", 3, layer_range);
    const std::vector<std::string> kinds =
        m.has("layer_types") ? m.strings("layer_types") : std::vector<std::string>();
    std::vector<std::int64_t> local;
    for (std::int64_t layer = 0; layer < described(m, "layers").value_or(0); ++layer)
        if (kinds.empty() ? layer % interval != 0
                          : layer < std::ssize(kinds) && kinds[layer] == "sliding_attention")
            local.push_back(layer);
    if (!local.empty()) {
        m.put("window", window, "local_attention");
        put_layers(m, "window_layers", local, "layer_types");
    }
    if (m.string("classifier_activation", "gelu") != m.string("hidden_activation", "gelu"))
        m.refuse("classifier_activation", "classifier_activation differs from hidden_activation",
                 "give the same function");
    if (m.real("mlp_dropout", 0, probability_range) > 0)
        m.refuse("mlp_dropout", "dropout between the linears of the feed-forward is not supported",
                 "only mlp_dropout = 0 can be modelled");
    m.assume("the head of masked tokens is in the graph");
}

struct Family {
    const char* model_type;
    Rules rules;
    void (*special)(ConfigMapper&) = nullptr;  // what no single key tells, after the rules
};

const std::vector<Family>& families() {
    static const Rules moe = {need("moe_intermediate_size", "expert_ffn", width_range),
                              need("num_experts_per_tok", "experts_per_token", expert_range),
                              flag("norm_topk_prob", "normalized_expert_weights", false)};
    static const Rules gemma_like =
        dimensions + rms(1e-6) + tied + attention_bias(false) +
        Rules{integer("head_dim", "head_dimension", 256, head_dimension_range),
              only("use_bidirectional_attention", false, "attention without a causal mask")};
    static const Rules granite_like = llama_like + grouped + rms(1e-6) + untied + attention_bias(false) +
                                      Rules{real("embedding_multiplier", "embedding_scale", 1),
                                            real("attention_multiplier", "score_scale", 1),
                                            real("residual_multiplier", "residual_scale", 1)};
    static const Rules cohere_like = llama_like + grouped + tied + attention_bias(false) +
                                     layer_norms("layer_norm_eps", "layer_norm_without_shift") +
                                     Rules{own("parallel_residual", true), own("shared_norm", true),
                                           real("logit_scale", "logit_scale", 0.0625)};
    static const Rules glm_like = dimensions + swiglu + must_group + untied +
                                  qkv_bias("attention_bias", true) +
                                  Rules{integer("head_dim", "head_dimension", 128, head_dimension_range)};
    static const Rules olmo_like = llama_like + grouped + untied + attention_bias(false);
    static const std::vector<Family> list = {
        {"cohere", cohere_like, cohere},
        {"cohere2", cohere_like, cohere2},
        {"dbrx",
         {need("d_model", "hidden", hidden_range), need("n_layers", "layers", layer_range),
          need("n_heads", "heads", head_range), need("vocab_size", "vocabulary", vocabulary_range),
          need("max_seq_len", "max_positions", token_range), own("norm", "layer_norm_without_shift"),
          real("resid_pdrop", "dropout", 0), real("emb_pdrop", "embedding_dropout", 0),
          flag("tie_word_embeddings", "tied_embeddings", false)},
         dbrx},
        {"deepseek_v2",
         dimensions + swiglu + rms(1e-6) + untied + latent + later_mixtures(0, false) +
             Rules{flag("mlp_bias", "mlp_bias", false)},
         deepseek},
        {"deepseek_v3",
         dimensions + swiglu + rms(1e-6) + untied + latent + later_mixtures(3, true) +
             Rules{own("router_scores", "sigmoid")},
         deepseek},
        {"falcon",
         {need("hidden_size", "hidden", hidden_range), need("vocab_size", "vocabulary", vocabulary_range),
          own("norm", "layer_norm"), real("layer_norm_epsilon", "epsilon", 1e-5), plain("activation", "gelu"),
          real("hidden_dropout", "dropout", 0), real("attention_dropout", "attention_dropout", 0),
          flag("tie_word_embeddings", "tied_embeddings", true)},
         falcon},
        {"gemma", gemma_like + must_group, gemma},
        {"gemma2", gemma_like + must_group + Rules{own("norm_place", "both")}, gemma2},
        {"gemma3_text", gemma_like + must_group + norms_per_head + Rules{own("norm_place", "both")}, gemma3},
        {"glm", glm_like + rms(1.5625e-7), half_rotary},
        {"glm4", glm_like + rms(1.5625e-7) + Rules{own("norm_place", "both")}, half_rotary},
        {"glm4_moe",
         llama_like + must_group + untied + rms(1e-5) + qkv_bias("attention_bias", false) +
             later_mixtures(1, true) + Rules{own("router_scores", "sigmoid")},
         glm4_moe},
        {"gpt_bigcode",
         Rules{need("n_embd", "hidden", hidden_range),
               need("n_layer", "layers", layer_range),
               need("n_head", "heads", head_range),
               need("vocab_size", "vocabulary", vocabulary_range),
               need("n_positions", "max_positions", token_range),
               own("position_encoding", "learned"),
               own("norm", "layer_norm"),
               real("layer_norm_epsilon", "epsilon", 1e-5),
               plain("activation_function", "gelu_pytorch_tanh"),
               real("resid_pdrop", "dropout", 0.1),
               real("embd_pdrop", "embedding_dropout", 0.1),
               real("attn_pdrop", "attention_dropout", 0.1),
               flag("tie_word_embeddings", "tied_embeddings", true),
               harmless("num_key_value_heads"),
               harmless("attention_softmax_in_fp32"),
               harmless("scale_attention_softmax_in_fp32"),
               harmless("inference_runner"),
               harmless("max_batch_size"),
               harmless("max_sequence_length"),
               harmless("validate_runner_input"),
               harmless("pre_allocate_kv_cache"),
               harmless("summary_activation"),
               harmless("summary_first_dropout"),
               harmless("summary_proj_to_labels"),
               harmless("summary_type"),
               harmless("summary_use_proj")} +
             all_biases,
         gpt_bigcode},
        {"gpt_neo",
         Rules{need("hidden_size", "hidden", hidden_range), need("num_layers", "layers", layer_range),
               need("num_heads", "heads", head_range), need("vocab_size", "vocabulary", vocabulary_range),
               need("max_position_embeddings", "max_positions", token_range),
               own("position_encoding", "learned"), own("norm", "layer_norm"),
               real("layer_norm_epsilon", "epsilon", 1e-5), plain("activation_function", "gelu_new"),
               real("resid_dropout", "dropout", 0), real("embed_dropout", "embedding_dropout", 0),
               real("attention_dropout", "attention_dropout", 0), own("qkv_bias", false),
               own("attention_output_bias", true), own("mlp_bias", true), own_integer("score_scale", 1),
               flag("tie_word_embeddings", "tied_embeddings", true)},
         gpt_neo},
        {"gpt_oss",
         dimensions + must_group + rms(1e-5) + untied + attention_bias(true) +
             Rules{integer("head_dim", "head_dimension", 64, head_dimension_range),
                   gated("hidden_act", "silu"), need("num_local_experts", "experts", expert_range),
                   need("num_experts_per_tok", "experts_per_token", expert_range),
                   own("attention_sinks", true), own("router_bias", true), own("expert_bias", true),
                   harmless("swiglu_alpha"), harmless("initial_context_length"),
                   harmless("experts_per_token")},
         gpt_oss},
        {"granite", granite_like + Rules{flag("mlp_bias", "mlp_bias", false)}, granite},
        {"granitemoe",
         granite_like + Rules{need("num_local_experts", "experts", expert_range),
                              need("num_experts_per_tok", "experts_per_token", expert_range)},
         granite},
        {"llama4_text",
         dimensions + swiglu + must_group + rms(1e-5) + untied + attention_bias(false) +
             Rules{integer("head_dim", "head_dimension", 128, head_dimension_range),
                   need("intermediate_size", "expert_ffn", width_range),
                   need("intermediate_size_mlp", "ffn", width_range),
                   need("num_local_experts", "experts", expert_range),
                   integer("num_experts_per_tok", "experts_per_token", 1, expert_range),
                   own("router_scores", "sigmoid"), harmless("attn_scale"), harmless("floor_scale"),
                   harmless("attn_temperature_tuning"), harmless("for_llm_compressor"),
                   harmless("cache_implementation")},
         llama4},
        {"modernbert",
         Rules{need("hidden_size", "hidden", hidden_range),
               need("num_hidden_layers", "layers", layer_range),
               need("num_attention_heads", "heads", head_range),
               need("vocab_size", "vocabulary", vocabulary_range),
               need("intermediate_size", "ffn", width_range),
               need("max_position_embeddings", "max_positions", token_range),
               real("attention_dropout", "attention_dropout", 0),
               gated("hidden_activation", "gelu"),
               real("norm_eps", "epsilon", 1e-5),
               real("embedding_dropout", "embedding_dropout", 0),
               flag("mlp_bias", "mlp_bias", false),
               flag("decoder_bias", "head_bias", true),
               flag("classifier_bias", "head_transform_bias", false),
               flag("tie_word_embeddings", "tied_embeddings", true),
               own("causal", false),
               own("embedding_norm", true),
               own("first_norm", false),
               own("head_transform", true),
               harmless("classifier_pooling"),
               harmless("deterministic_flash_attn"),
               harmless("initializer_cutoff_factor"),
               harmless("sparse_pred_ignore_index"),
               harmless("sparse_prediction"),
               harmless("reference_compile"),
               harmless("repad_logits_with_grad"),
               harmless("position_embedding_type"),
               harmless("layer_norm_eps"),
               harmless("sliding_window")},
         modernbert},
        {"olmo", olmo_like + Rules{own("norm", "layer_norm_without_parameters"), own("mlp_bias", false)},
         olmo},
        {"olmo2", olmo_like + rms(1e-5) + norms_of_all_heads + Rules{own("norm_place", "behind")}, rotary},
        {"olmo3", olmo_like + rms(1e-5) + norms_of_all_heads + Rules{own("norm_place", "behind")}, olmo3},
        {"olmoe",
         olmo_like + rms(1e-5) + norms_of_all_heads +
             Rules{need("num_experts_per_tok", "experts_per_token", expert_range),
                   flag("norm_topk_prob", "normalized_expert_weights", false)},
         olmoe},
        {"phi",
         dimensions + grouped + all_biases + untied + layer_norms("layer_norm_eps", "layer_norm") +
             Rules{plain("hidden_act", "gelu_new"), own("parallel_residual", true), own("shared_norm", true),
                   own("head_bias", true), real("resid_pdrop", "dropout", 0),
                   real("embd_pdrop", "embedding_dropout", 0)},
         phi},
        {"phimoe",
         llama_like + must_group + untied + attention_bias(false) +
             layer_norms("rms_norm_eps", "layer_norm") +
             Rules{flag("lm_head_bias", "head_bias", false),
                   need("num_local_experts", "experts", expert_range),
                   need("num_experts_per_tok", "experts_per_token", expert_range)},
         phimoe},
        {"qwen2_moe",
         llama_like + must_group + rms(1e-6) + untied + moe + qkv_bias("qkv_bias", true) +
             Rules{need("shared_expert_intermediate_size", "shared_expert_ffn", width_range)},
         qwen2_moe},
        {"qwen3",
         dimensions + swiglu + must_group + rms(1e-6) + untied + attention_bias(false) + norms_per_head +
             Rules{integer("head_dim", "head_dimension", 128, head_dimension_range)},
         qwen},
        {"qwen3_moe",
         llama_like + must_group + rms(1e-6) + untied + attention_bias(false) + norms_per_head + moe,
         qwen3_moe},
        {"seed_oss",
         dimensions + swiglu + must_group + rms(1e-6) + untied + qkv_bias("attention_bias", true) +
             Rules{integer("head_dim", "head_dimension", 128, head_dimension_range),
                   flag("attention_out_bias", "attention_output_bias", false),
                   flag("mlp_bias", "mlp_bias", false), real("residual_dropout", "dropout", 0.1)},
         rotary},
        {"smollm3",
         llama_like + must_group + rms(1e-6) + tied + attention_bias(false) +
             Rules{flag("mlp_bias", "mlp_bias", false)},
         smollm3},
        {"stablelm",
         dimensions + swiglu + grouped + untied + layer_norms("layer_norm_eps", "layer_norm") +
             qkv_bias("use_qkv_bias", false) + Rules{real("hidden_dropout", "dropout", 0)},
         stablelm},
        {"starcoder2",
         dimensions + must_group + head_dimension + tied + layer_norms("norm_epsilon", "layer_norm") +
             Rules{plain("hidden_act", "gelu_pytorch_tanh"), real("residual_dropout", "dropout", 0),
                   real("embedding_dropout", "embedding_dropout", 0)},
         starcoder2},
    };
    return list;
}

}  // namespace

std::vector<std::string> table_model_types() {
    std::vector<std::string> names;
    for (const Family& family : families()) names.push_back(family.model_type);
    return names;
}

bool map_family(const std::string& model_type, ConfigMapper& mapper) {
    for (const Family& family : families()) {
        if (model_type != family.model_type) continue;
        mapper.put("family", "stack", "model_type");
        for (const Rule& rule : family.rules) apply(rule, mapper);
        if (family.special) family.special(mapper);
        mapper.expect_class(model_type == "modernbert" ? "MaskedLM" : "CausalLM");
        return true;
    }
    return false;
}

}  // namespace model
