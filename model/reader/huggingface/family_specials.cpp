#include "model/reader/huggingface/family_specials.h"

#include <algorithm>
#include <cmath>

#include <fmt/core.h>

#include "core/index/integers.h"
#include "model/reader/huggingface/family_rule.h"

namespace model::family {

void usual_dimensions(ConfigMapper& m) {
    m.required_integer("hidden_size", "hidden", hidden_range);
    m.required_integer("num_hidden_layers", "layers", layer_range);
    m.required_integer("num_attention_heads", "heads", head_range);
    m.required_integer("vocab_size", "vocabulary", vocabulary_range);
}

void rotary(ConfigMapper& m) { m.rotary(10000.0); }

void half_rotary(ConfigMapper& m) { m.rotary(10000.0, 0.5); }

namespace {

void quarter_rotary(ConfigMapper& m) { m.rotary(10000.0, 0.25); }

}  // namespace

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

namespace {

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

}  // namespace

void gemma(ConfigMapper& m) {
    rotary(m);
    gemma_embedding(m);
    gemma_activation(m);
}

namespace {

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

}  // namespace

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

namespace {

void clipped(ConfigMapper& m) {
    if (m.has("clip_qkv")) m.put("clip_qkv", true, "clip_qkv");
}

}  // namespace

void olmo(ConfigMapper& m) {
    rotary(m);
    clipped(m);
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

namespace {

void query_key_layer_norm(ConfigMapper& m, const char* key, const char* kind, const char* scales) {
    if (!m.boolean(key, false)) return;
    m.put("query_key_norm", "per_head", key);
    m.put("query_key_norm_kind", kind, key);
    m.put("query_key_norm_scales", scales, key);
}

}  // namespace

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
    if (m.boolean("alibi", false)) {
        m.put("position_encoding", "alibi", "alibi");
        m.assume("ALiBi's slopes are not divided by the root of the head dimension, as Falcon's class does");
    } else {
        m.rotary(10000.0);
    }
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

void smollm3(ConfigMapper& m) {
    m.rotary(2e6);
    unrotated_layers(m, 4);
    if (m.boolean("use_sliding_window", false)) windows_by_kind(m, 0);
    m.harmless("layer_types");
    m.harmless("sliding_window");
    m.harmless("max_window_layers");
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

}  // namespace model::family
