#include "model/reader/huggingface.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/reader.h"
#include "model/reader/bounds.h"
#include "model/reader/huggingface/config_mapper.h"
#include "model/reader/huggingface/family_rule.h"
#include "model/reader/huggingface/family_specials.h"
#include "model/reader/huggingface/family_table.h"

namespace model {

namespace {

using core::Value;

void gpt_dimensions(ConfigMapper& m) {
    m.required_integer("n_embd", "hidden", hidden_range);
    m.required_integer("n_layer", "layers", layer_range);
    m.required_integer("n_head", "heads", head_range);
    m.required_integer("vocab_size", "vocabulary", vocabulary_range);
    m.required_integer("n_positions", "max_positions", token_range);
    m.optional_integer("n_inner", "ffn", width_range);
    m.real("resid_pdrop", "dropout", 0.1, probability_range);
    m.real("embd_pdrop", "embedding_dropout", 0.1, probability_range);
    m.real("attn_pdrop", "attention_dropout", 0.1, probability_range);
    m.real("layer_norm_epsilon", "epsilon", 1e-5, epsilon_range);
    m.activation("activation_function", "gelu_new");
}

void gpt2(ConfigMapper& m) {
    gpt_dimensions(m);
    m.ignore({"reorder_and_upcast_attn", "summary_activation", "summary_first_dropout",
              "summary_proj_to_labels", "summary_type", "summary_use_proj"});
    m.must_be("scale_attn_by_inverse_layer_idx", false, false, "scores divided by the number of the layer");
    m.boolean("tie_word_embeddings", "tied_embeddings", true);
    m.must_be("add_cross_attention", false, false, "cross-attention in every layer");
    m.must_be("scale_attn_weights", true, true, "unscaled attention scores");
    m.expect_class("LMHead");
}

// transformers' GPT-J drops by default nothing, GPT-2 0.1; both write the values out.
void gptj(ConfigMapper& m) {
    gpt_dimensions(m);
    m.ignore({"rotary", "scale_attn_weights", "summary_activation", "summary_first_dropout",
              "summary_proj_to_labels", "summary_type", "summary_use_proj"});
    for (const char* key : {"resid_pdrop", "embd_pdrop", "attn_pdrop"})
        if (!m.has(key))
            m.put(std::string_view(key) == "resid_pdrop"  ? "dropout"
                  : std::string_view(key) == "embd_pdrop" ? "embedding_dropout"
                                                          : "attention_dropout",
                  0.0, key);
    m.boolean("tie_word_embeddings", "tied_embeddings", false);
    const Value* hidden = m.description.find("hidden");
    const Value* heads = m.description.find("heads");
    const std::int64_t rotary = m.integer("rotary_dim", 64, {1, head_dimension_range.greatest});
    if (!hidden || !heads || heads->integer() == 0) return;
    const std::int64_t head_dimension = hidden->integer() / heads->integer();
    if (rotary > head_dimension)
        m.refuse("rotary_dim",
                 fmt::format("rotary_dim = {} is more than the head dimension, {}", rotary, head_dimension),
                 "choose at most the head dimension");
    else m.put("rotary_fraction", static_cast<double>(rotary) / head_dimension, "rotary_dim");
    m.expect_class("CausalLM");
}

void gpt_neox(ConfigMapper& m) {
    family::usual_dimensions(m);
    m.required_integer("intermediate_size", "ffn", width_range);
    m.required_integer("max_position_embeddings", "max_positions", token_range);
    m.rotary(m.real("rotary_emb_base", 10000.0, {1, 1e12}), 0.25);
    m.boolean("use_parallel_residual", "parallel_residual", true);
    m.ignore({"attention_probs_dropout_prob", "hidden_dropout_prob"});
    m.boolean("tie_word_embeddings", "tied_embeddings", false);
    m.boolean("attention_bias", "qkv_bias", true);
    m.boolean("attention_bias", "attention_output_bias", true);
    m.real("hidden_dropout", "dropout", 0.0, probability_range);
    m.real("hidden_dropout", "embedding_dropout", 0.0, probability_range);
    m.real("attention_dropout", "attention_dropout", 0.0, probability_range);
    m.real("layer_norm_eps", "epsilon", 1e-5, epsilon_range);
    m.activation("hidden_act", "gelu");
    m.expect_class("CausalLM");
}

void opt(ConfigMapper& m) {
    family::usual_dimensions(m);
    m.ignore({"layerdrop", "activation_dropout"});
    m.required_integer("ffn_dim", "ffn", width_range);
    m.required_integer("max_position_embeddings", "max_positions", token_range);
    m.must_be("do_layer_norm_before", true, true, "norms after the residual, as in opt-350m");
    m.must_be("layer_norm_elementwise_affine", true, true, "norms without parameters");
    m.must_be("_remove_final_layer_norm", false, false, "no final norm");
    if (m.has("word_embed_proj_dim")) {
        const Value* hidden = m.description.find("hidden");
        const std::int64_t projection = m.integer("word_embed_proj_dim", 0, hidden_range);
        if (hidden && projection != hidden->integer())
            m.refuse("word_embed_proj_dim",
                     fmt::format("word_embed_proj_dim = {} differs from hidden_size = {}", projection,
                                 hidden->integer()),
                     "projected embeddings (opt-350m) are not supported; use another OPT");
    }
    const bool has_bias = m.boolean("enable_bias", true);
    for (const char* key : {"qkv_bias", "attention_output_bias", "mlp_bias"})
        m.put(key, has_bias, "enable_bias");
    m.boolean("tie_word_embeddings", "tied_embeddings", true);
    m.real("dropout", "dropout", 0.1, probability_range);
    m.real("attention_dropout", "attention_dropout", 0.0, probability_range);
    m.activation("activation_function", "relu");
    m.expect_class("CausalLM");
}

void bloom(ConfigMapper& m) {
    m.ignore({"slow_but_exact", "masked_softmax_fusion", "offset_alibi", "attention_softmax_in_fp32",
              "bias_dropout_fusion", "skip_bias_add", "skip_bias_add_qkv", "hidden_size", "n_inner"});
    m.required_integer("hidden_size", "n_embed", "hidden", hidden_range);
    m.required_integer("n_layer", "num_hidden_layers", "layers", layer_range);
    m.required_integer("n_head", "num_attention_heads", "heads", head_range);
    m.required_integer("vocab_size", "vocabulary", vocabulary_range);
    if (m.has("seq_length")) m.required_integer("seq_length", "sequence_length", token_range);
    else {
        m.put("sequence_length", std::int64_t(2048), "seq_length");
        m.assume(
            "the config states no seq_length: 2048 tokens a sample, as BLOOM was trained (arXiv 2211.05100, "
            "table 3)");
    }
    m.must_be("apply_residual_connection_post_layernorm", false, false, "the residual taken after the norm");
    m.boolean("tie_word_embeddings", "tied_embeddings", true);
    m.real("hidden_dropout", "dropout", 0.0, probability_range);
    m.real("attention_dropout", "attention_dropout", 0.0, probability_range);
    m.real("layer_norm_epsilon", "epsilon", 1e-5, epsilon_range);
    m.expect_class("CausalLM");
}

void mpt(ConfigMapper& m) {
    m.required_integer("d_model", "hidden", hidden_range);
    m.required_integer("n_layers", "layers", layer_range);
    m.required_integer("n_heads", "heads", head_range);
    m.required_integer("vocab_size", "vocabulary", vocabulary_range);
    m.required_integer("max_seq_len", "max_positions", token_range);
    // transformers' class has a feed-forward of four times the width and no bias anywhere, whatever these
    // two keys say.
    if (m.integer("expansion_ratio", 4, {1, 64}) != 4)
        m.refuse("expansion_ratio",
                 "transformers' MPT has a feed-forward of 4 d_model whatever its config says",
                 "only expansion_ratio = 4 can be modelled");
    m.must_be("no_bias", true, true, "biases, which transformers' MPT does not have");
    m.real("resid_pdrop", "dropout", 0.0, probability_range);
    m.real("emb_pdrop", "embedding_dropout", 0.0, probability_range);
    m.boolean("tie_word_embeddings", "tied_embeddings", true);
    bool has_alibi = true;
    if (m.has("attn_config")) {
        core::TableReader attention(*m.config().find("attn_config"), "attn_config", m.diagnostics());
        has_alibi = attention.boolean("alibi", true);
        if (attention.boolean("qk_ln", false))
            attention.error("qk_ln", "attn_config.qk_ln = true (norms of queries and keys) is not supported",
                            "only qk_ln = false can be modelled");
        if (attention.boolean("prefix_lm", false))
            attention.error("prefix_lm", "attn_config.prefix_lm = true is not supported",
                            "only causal masks can be modelled");
        if (const auto probability = attention.optional_real("attn_pdrop", probability_range))
            m.put("attention_dropout", *probability, "attn_config");
        if (const std::string kind = attention.string("attn_type", "multihead_attention");
            kind != "multihead_attention")
            attention.error("attn_type",
                            fmt::format("attn_config.attn_type = {} is not in transformers' MPT", kind),
                            "only multihead_attention can be modelled");
    }
    for (const char* key : {"learned_pos_emb", "embedding_fraction", "init_device", "layer_norm_epsilon",
                            "logit_scale", "norm_type", "verbose", "init_config", "init_nonlinearity"})
        m.harmless(key);
    // transformers' class has ALiBi alone, whatever learned_pos_emb says.
    if (!has_alibi)
        m.refuse("attn_config", "transformers' MPT has ALiBi positions whatever its config says",
                 "only attn_config.alibi = true can be modelled");
    m.put("position_encoding", "alibi", "attn_config");
    m.expect_class("CausalLM");
}

void llama_like(ConfigMapper& m, double default_base, double default_epsilon, bool kv_heads_required) {
    family::usual_dimensions(m);
    m.required_integer("intermediate_size", "ffn", width_range);
    m.required_integer("max_position_embeddings", "max_positions", token_range);
    if (kv_heads_required) m.required_integer("num_key_value_heads", "kv_heads", head_range);
    else m.optional_integer("num_key_value_heads", "kv_heads", head_range);
    m.optional_integer("head_dim", "head_dimension", head_dimension_range);
    m.real("rms_norm_eps", "epsilon", default_epsilon, epsilon_range);
    m.rotary(default_base);
    m.activation("hidden_act", "silu", true);
    m.boolean("tie_word_embeddings", "tied_embeddings", false);
    m.real("attention_dropout", "attention_dropout", 0.0, probability_range);
    m.expect_class("CausalLM");
}

void llama(ConfigMapper& m) {
    llama_like(m, 10000.0, 1e-6, false);
    m.boolean("attention_bias", "qkv_bias", false);
    m.boolean("attention_bias", "attention_output_bias", false);
    m.boolean("mlp_bias", "mlp_bias", false);
}

void mistral(ConfigMapper& m) {
    llama_like(m, 10000.0, 1e-6, true);
    m.must_be("attention_bias", false, false, "biases, which transformers' class does not have");
    // transformers: 4096 where the key is absent, none where it is null.
    if (m.is_absent("sliding_window")) {
        m.put("window", std::int64_t(4096), "sliding_window");
        m.assume("the config states no sliding_window: 4096, the default of transformers' Mistral");
    }
    m.optional_integer("sliding_window", "window", token_range);
}

void mixtral(ConfigMapper& m) {
    llama_like(m, 1e6, 1e-5, true);
    m.required_integer("num_local_experts", "experts", expert_range);
    m.required_integer("num_experts_per_tok", "experts_per_token", expert_range);
    m.optional_integer("sliding_window", "window", token_range);
    m.assume("experts are loaded evenly; the router's auxiliary loss costs nothing beside them");
}

void qwen2(ConfigMapper& m) {
    llama_like(m, 10000.0, 1e-6, true);
    m.ignore({"sliding_window", "max_window_layers", "layer_types", "use_mrope"});
    if (!m.boolean("use_sliding_window", false)) return;
    if (m.has("layer_types")) return windows_by_kind(m, 0);
    m.required_integer("sliding_window", "window", token_range);
    m.required_integer("max_window_layers", "first_window_layer", {0, layer_range.greatest});
}

// Llama's layers; transformers keeps queries, keys and values, and gate and up, in one matrix each, as the
// graph does.
void phi3(ConfigMapper& m) {
    llama_like(m, 10000.0, 1e-5, false);
    m.optional_integer("sliding_window", "window", token_range);
    m.real("resid_pdrop", "dropout", 0.0, probability_range);
    m.real("embd_pdrop", "embedding_dropout", 0.0, probability_range);
    m.ignore({"original_max_position_embeddings", "attention_bias"});
}

struct ModelType {
    const char* model_type;
    const char* family;
    void (*map)(ConfigMapper&);
};
constexpr ModelType model_types[] = {{"bart", "bart", family::bart},
                                     {"bert", "bert", family::bert},
                                     {"bloom", "bloom", bloom},
                                     {"camembert", "bert", family::roberta},
                                     {"clip", "clip", family::clip},
                                     {"deberta-v2", "deberta", family::deberta},
                                     {"deit", "vit", family::deit},
                                     {"distilbert", "bert", family::distilbert},
                                     {"gpt2", "gpt2", gpt2},
                                     {"gpt_neox", "gpt-neox", gpt_neox},
                                     {"gptj", "gptj", gptj},
                                     {"llama", "llama", llama},
                                     {"mistral", "mistral", mistral},
                                     {"mixtral", "mixtral", mixtral},
                                     {"mpt", "mpt", mpt},
                                     {"mt5", "t5", family::mt5},
                                     {"opt", "opt", opt},
                                     {"phi3", "llama", phi3},
                                     {"qwen2", "qwen2", qwen2},
                                     {"roberta", "bert", family::roberta},
                                     {"swin", "swin", family::swin},
                                     {"t5", "t5", family::t5},
                                     {"vit", "vit", family::vit},
                                     {"whisper", "whisper", family::whisper},
                                     {"xlm-roberta", "bert", family::roberta}};

bool map_function(const std::string& type, ConfigMapper& m) {
    for (const ModelType& known : model_types) {
        if (type != known.model_type) continue;
        m.put("family", known.family, "model_type");
        known.map(m);
        return true;
    }
    return false;
}

// A model_type of images and text whose language model is a family of its own, in text_config.
struct Multimodal {
    const char *model_type, *text_type;
    bool ties_as_a_whole;  // the token table, by the key outside text_config
    // What short files leave out: the defaults of transformers' class of text_config.
    std::vector<std::pair<const char*, std::int64_t>> defaults;
};
const std::vector<Multimodal>& multimodal_types() {
    static const std::vector<Multimodal> types = {{"gemma3",
                                                   "gemma3_text",
                                                   true,
                                                   {{"hidden_size", 2304},
                                                    {"intermediate_size", 9216},
                                                    {"num_hidden_layers", 26},
                                                    {"num_attention_heads", 8},
                                                    {"num_key_value_heads", 4},
                                                    {"head_dim", 256},
                                                    {"vocab_size", 262208},
                                                    {"max_position_embeddings", 131072},
                                                    {"sliding_window", 4096}}},
                                                  {"llama4",
                                                   "llama4_text",
                                                   false,
                                                   {{"hidden_size", 5120},
                                                    {"intermediate_size", 8192},
                                                    {"intermediate_size_mlp", 16384},
                                                    {"num_hidden_layers", 48},
                                                    {"num_attention_heads", 40},
                                                    {"num_key_value_heads", 8},
                                                    {"head_dim", 128},
                                                    {"vocab_size", 202048},
                                                    {"max_position_embeddings", 131072},
                                                    {"num_local_experts", 16},
                                                    {"num_experts_per_tok", 1}}}};
    return types;
}

// The config of the language model alone; nothing where there are errors.
std::optional<Value> text_config(const Multimodal& type, ConfigMapper& m,
                                 std::vector<std::string>& assumptions) {
    const Value* given = m.table("text_config");
    if (!given) {
        m.refuse(
            "text_config", "text_config is missing",
            fmt::format("a config.json of model_type \"{}\" has its language model there", type.model_type));
        return std::nullopt;
    }
    m.ignore({"vision_config", "mm_tokens_per_image", "boi_token_index", "eoi_token_index",
              "image_token_index", "boi_token_id", "eoi_token_id", "image_token_id"});
    Value text = *given;
    text["model_type"] = type.text_type;
    // Gemma 3 follows the whole model's key, whatever that of text_config says; Llama 4 the latter.
    const bool is_tied = m.boolean("tie_word_embeddings", true);
    if (type.ties_as_a_whole) text["tie_word_embeddings"] = is_tied;
    std::string added;
    for (const auto& [key, value] : type.defaults)
        if (!text.find(key)) {
            text[key] = value;
            added += fmt::format("{}{} = {}", added.empty() ? "" : ", ", key, value);
        }
    assumptions.push_back(
        "the graph is the language model of text_config: vision_config's encoder and the projection of its "
        "results are not modelled, and images are tokens like others");
    if (!added.empty())
        assumptions.push_back(
            fmt::format("text_config leaves out, and transformers' class then has, {}", added));
    return text;
}

}  // namespace

std::vector<std::string> supported_model_types() {
    std::vector<std::string> names;
    for (const ModelType& type : model_types) names.push_back(type.model_type);
    for (const Multimodal& type : multimodal_types()) names.push_back(type.model_type);
    for (std::string& name : table_model_types()) names.push_back(std::move(name));
    std::sort(names.begin(), names.end());
    return names;
}

std::optional<Value> description_of_config(const Value& config, std::vector<std::string>& assumptions,
                                           core::Diagnostics& diagnostics) {
    const std::size_t errors = diagnostics.error_count();
    core::TableReader reader(config, "", diagnostics);
    if (diagnostics.error_count() != errors) return std::nullopt;
    const std::string type = reader.required_string("model_type");
    if (diagnostics.error_count() != errors) return std::nullopt;
    ConfigMapper m(config, assumptions, diagnostics);
    for (const Multimodal& known : multimodal_types()) {
        if (type != known.model_type) continue;
        const std::optional<Value> text = text_config(known, m, assumptions);
        m.finish();
        if (!text || diagnostics.error_count() != errors) return std::nullopt;
        return description_of_config(*text, assumptions, diagnostics);
    }
    if (!map_function(type, m) && !map_family(type, m)) {
        const std::string near = core::did_you_mean(type, supported_model_types());
        const std::optional<FamilyRefusal> known = refusal_of_family(type);
        reader.error("model_type",
                     fmt::format("model_type = {} is not supported{}", core::in_quotes(type),
                                 known ? known->reason : ""),
                     known ? known->hint
                           : (near.empty() ? "" : fmt::format("did you mean {}? ", core::in_quotes(near))) +
                                 "supported: " + core::list_in_words(supported_model_types()));
        return std::nullopt;
    }
    m.finish();
    if (m.has("quantization_config"))
        assumptions.push_back("quantization_config is of inference: training keeps the plan's precision");
    if (diagnostics.error_count() != errors) return std::nullopt;
    return std::move(m.description);
}

}  // namespace model
