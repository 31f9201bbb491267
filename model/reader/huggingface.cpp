#include "model/reader/huggingface.h"

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/reader.h"
#include "model/reader/bounds.h"

namespace model {

namespace {

using core::IntegerRange;
using core::RealRange;
using core::Value;

// Typed copies from config keys (diagnosed under their own names) to description keys. A null in a config
// means the default, as in transformers.
class ConfigMapper {
public:
    ConfigMapper(const Value& config, std::vector<std::string>& assumptions, core::Diagnostics& diagnostics)
        : description(Value::table()),
          config_(config),
          reader_(config, "", diagnostics),
          assumptions_(assumptions) {
        description.location = config.location;
    }

    bool has(const char* key) const {
        const Value* value = config_.find(key);
        return value && !value->is_null();
    }

    bool is_absent(const char* key) const { return config_.find(key) == nullptr; }

    void required_integer(const char* key, const char* to, IntegerRange range) {
        if (!has(key)) return missing(key);
        if (const auto value = reader_.optional_integer(key, range)) put(to, *value, key);
    }
    // One of two names for the same thing (older and newer transformers).
    void required_integer(const char* key, const char* other, const char* to, IntegerRange range) {
        required_integer(has(key) || !has(other) ? key : other, to, range);
    }
    void optional_integer(const char* key, const char* to, IntegerRange range) {
        if (!has(key)) return;
        if (const auto value = reader_.optional_integer(key, range)) put(to, *value, key);
    }
    // Defaults are transformers' own, of the class that the model_type names.
    std::int64_t integer(const char* key, std::int64_t fallback, IntegerRange range) {
        return has(key) ? reader_.integer(key, fallback, range) : fallback;
    }
    void real(const char* key, const char* to, double fallback, RealRange range) {
        put(to, has(key) ? reader_.real(key, fallback, range) : fallback, key);
    }
    double real(const char* key, double fallback, RealRange range) {
        return has(key) ? reader_.real(key, fallback, range) : fallback;
    }
    bool boolean(const char* key, bool fallback) {
        return has(key) ? reader_.boolean(key, fallback) : fallback;
    }
    void boolean(const char* key, const char* to, bool fallback) { put(to, boolean(key, fallback), key); }
    std::string string(const char* key, const char* fallback) {
        return has(key) ? reader_.string(key, fallback) : std::string(fallback);
    }

    // A switch of the architecture that only one position of is modelled.
    void must_be(const char* key, bool allowed, bool fallback, const char* what) {
        if (boolean(key, fallback) != allowed)
            refuse(key, fmt::format("{} = {} ({}) is not supported", key, allowed ? "false" : "true", what),
                   fmt::format("only {} = {} can be modelled", key, allowed ? "true" : "false"));
    }
    void refuse(const char* key, std::string message, std::string hint) {
        reader_.error(key, std::move(message), std::move(hint));
    }
    void assume(std::string text) { assumptions_.push_back(std::move(text)); }

    // hidden_act and its cousins: transformers' names to ours.
    void activation(const char* key, const char* fallback, bool is_gated = false) {
        struct Name {
            const char *theirs, *plain, *gated;
        };
        static constexpr Name names[] = {{"gelu", "gelu", "gated_gelu"},
                                         {"gelu_new", "gelu_tanh", "gated_gelu_tanh"},
                                         {"gelu_fast", "gelu_tanh", "gated_gelu_tanh"},
                                         {"gelu_pytorch_tanh", "gelu_tanh", "gated_gelu_tanh"},
                                         {"relu", "relu", nullptr},
                                         {"silu", "silu", "gated_silu"},
                                         {"swish", "silu", "gated_silu"}};
        const std::string given = string(key, fallback);
        std::vector<std::string> allowed;
        for (const Name& name : names) {
            const char* ours = is_gated ? name.gated : name.plain;
            if (!ours) continue;
            if (given == name.theirs) return put("activation", ours, key);
            allowed.push_back(name.theirs);
        }
        refuse(key, fmt::format("{} = {} is not supported", key, core::in_quotes(given)),
               "supported: " + core::list_in_words(allowed));
    }

    // Rotary base and its scaling. Scaling changes angles, not shapes or work.
    void rotary(double default_base) {
        const Value* table = has("rope_parameters") ? reader_.optional_table("rope_parameters") : nullptr;
        if (table && table->find("rope_theta") && !has("rope_theta")) {
            core::TableReader nested(*table, "rope_parameters", reader_.diagnostics());
            put("rotary_base", nested.real("rope_theta", default_base, {1, 1e12}), "rope_parameters");
        } else {
            real("rope_theta", "rotary_base", default_base, {1, 1e12});
        }
        for (const char* key : {"rope_scaling", "rope_parameters"}) {
            const Value* scaling = config_.find(key);
            if (!scaling || !scaling->is_table()) continue;
            const Value* kind =
                scaling->find("rope_type") ? scaling->find("rope_type") : scaling->find("type");
            if (kind && kind->is_string() && kind->string() != "default")
                assume(fmt::format(
                    "{} ({}) changes rotary angles only: shapes, parameters and time are unaffected", key,
                    kind->string()));
        }
    }

    // The head after the body: of causal models the language-model head is what pre-training uses, whatever
    // class saved the config.
    void expect_class(const char* suffix) {
        const Value* names = config_.find("architectures");
        if (!names || !names->is_array() || names->size() == 0 || !names->items()[0].is_string()) return;
        const std::string& name = names->items()[0].string();
        if (name.find(suffix) == std::string::npos)
            assume(fmt::format(
                "the config was saved by {}; the graph has the language-model head of pre-training", name));
    }

    void put(const char* to, Value value, const char* key) {
        value.location = value.key_location = reader_.location_of(key);
        description[to] = std::move(value);
    }

    Value description;

private:
    void missing(const char* key) {
        reader_.error(key, fmt::format("{} is missing", key),
                      fmt::format("a config.json of model_type \"{}\" states it", string("model_type", "")));
    }

    const Value& config_;
    core::TableReader reader_;
    std::vector<std::string>& assumptions_;
};

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
    m.boolean("tie_word_embeddings", "tied_embeddings", true);
    m.must_be("add_cross_attention", false, false, "cross-attention in every layer");
    m.must_be("scale_attn_weights", true, true, "unscaled attention scores");
    m.expect_class("LMHead");
}

// transformers' GPT-J drops by default nothing, GPT-2 0.1; both write the values out.
void gptj(ConfigMapper& m) {
    gpt_dimensions(m);
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

void dimensions(ConfigMapper& m) {
    m.required_integer("hidden_size", "hidden", hidden_range);
    m.required_integer("num_hidden_layers", "layers", layer_range);
    m.required_integer("num_attention_heads", "heads", head_range);
    m.required_integer("vocab_size", "vocabulary", vocabulary_range);
}

void gpt_neox(ConfigMapper& m) {
    dimensions(m);
    m.required_integer("intermediate_size", "ffn", width_range);
    m.required_integer("max_position_embeddings", "max_positions", token_range);
    m.real("rotary_pct", "rotary_fraction", 0.25, {0.001, 1});
    if (m.has("rope_theta") || m.has("rope_parameters")) m.rotary(10000.0);
    else m.real("rotary_emb_base", "rotary_base", 10000.0, {1, 1e12});
    m.boolean("use_parallel_residual", "parallel_residual", true);
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
    dimensions(m);
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

void mpt(ConfigMapper& m, const Value& config, core::Diagnostics& diagnostics) {
    m.required_integer("d_model", "hidden", hidden_range);
    m.required_integer("n_layers", "layers", layer_range);
    m.required_integer("n_heads", "heads", head_range);
    m.required_integer("vocab_size", "vocabulary", vocabulary_range);
    m.required_integer("max_seq_len", "max_positions", token_range);
    const std::int64_t ratio = m.integer("expansion_ratio", 4, {1, 64});
    if (const Value* hidden = m.description.find("hidden"))
        m.put("ffn", ratio * hidden->integer(), "expansion_ratio");
    const bool has_bias = !m.boolean("no_bias", true);
    for (const char* key : {"qkv_bias", "attention_output_bias", "mlp_bias", "norm_shift"})
        m.put(key, has_bias, "no_bias");
    m.real("resid_pdrop", "dropout", 0.0, probability_range);
    m.real("emb_pdrop", "embedding_dropout", 0.0, probability_range);
    m.boolean("tie_word_embeddings", "tied_embeddings", true);
    bool has_alibi = false;
    if (m.has("attn_config")) {
        core::TableReader attention(*config.find("attn_config"), "attn_config", diagnostics);
        has_alibi = attention.boolean("alibi", false);
        if (attention.boolean("qk_ln", false))
            attention.error("qk_ln", "attn_config.qk_ln = true (norms of queries and keys) is not supported",
                            "only qk_ln = false can be modelled");
        if (attention.boolean("prefix_lm", false))
            attention.error("prefix_lm", "attn_config.prefix_lm = true is not supported",
                            "only causal masks can be modelled");
        if (const auto probability = attention.optional_real("attn_pdrop", probability_range))
            m.put("attention_dropout", *probability, "attn_config");
        const std::string kind =
            attention
                .optional_choice("attn_type",
                                 {"multihead_attention", "multiquery_attention", "grouped_query_attention"})
                .value_or("multihead_attention");
        if (kind == "multiquery_attention") m.put("kv_heads", std::int64_t(1), "attn_config");
        if (kind == "grouped_query_attention")
            m.put("kv_heads", attention.required_integer("kv_n_heads", head_range), "attn_config");
    }
    if (has_alibi) m.put("position_encoding", "alibi", "attn_config");
    else if (m.boolean("learned_pos_emb", true)) m.put("position_encoding", "learned", "learned_pos_emb");
    else
        m.refuse("learned_pos_emb",
                 "neither learned positions nor alibi: no positions at all are not supported",
                 "set attn_config.alibi or learned_pos_emb");
    m.expect_class("CausalLM");
}

void llama_like(ConfigMapper& m, double default_base, double default_epsilon, bool kv_heads_required) {
    dimensions(m);
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
    if (!m.boolean("use_sliding_window", false)) return;
    m.required_integer("sliding_window", "window", token_range);
    m.required_integer("max_window_layers", "first_window_layer", {0, layer_range.greatest});
}

// Llama's layers; transformers keeps queries, keys and values, and gate and up, in one matrix each, as the
// graph does.
void phi3(ConfigMapper& m) {
    llama_like(m, 10000.0, 1e-5, false);
    m.optional_integer("sliding_window", "window", token_range);
    m.real("partial_rotary_factor", "rotary_fraction", 1.0, {0.001, 1});
    m.real("resid_pdrop", "dropout", 0.0, probability_range);
    m.real("embd_pdrop", "embedding_dropout", 0.0, probability_range);
}

void bert(ConfigMapper& m) {
    dimensions(m);
    m.required_integer("intermediate_size", "ffn", width_range);
    m.required_integer("max_position_embeddings", "max_positions", token_range);
    m.required_integer("type_vocab_size", "token_types", {0, 1 << 20});
    m.real("hidden_dropout_prob", "dropout", 0.1, probability_range);
    m.real("attention_probs_dropout_prob", "attention_dropout", 0.1, probability_range);
    m.real("layer_norm_eps", "epsilon", 1e-12, epsilon_range);
    m.activation("hidden_act", "gelu");
    m.must_be("is_decoder", false, false, "causal BERT");
    m.must_be("add_cross_attention", false, false, "cross-attention in every layer");
    m.must_be("tie_word_embeddings", true, true, "an output embedding of its own");
    if (const std::string kind = m.string("position_embedding_type", "absolute"); kind != "absolute")
        m.refuse("position_embedding_type",
                 fmt::format("position_embedding_type = {} is not supported", core::in_quotes(kind)),
                 "supported: absolute");
    m.assume(
        "heads of pre-training (masked tokens and next sentence) are in the graph; parameters counts "
        "BertModel with its pooler, as published");
}

void t5(ConfigMapper& m) {
    m.required_integer("d_model", "hidden", hidden_range);
    m.required_integer("d_kv", "head_dimension", head_dimension_range);
    m.required_integer("d_ff", "ffn", width_range);
    m.required_integer("num_layers", "layers", layer_range);
    m.optional_integer("num_decoder_layers", "decoder_layers", layer_range);
    m.required_integer("num_heads", "heads", head_range);
    m.required_integer("vocab_size", "vocabulary", vocabulary_range);
    m.optional_integer("relative_attention_num_buckets", "relative_buckets", {1, 1 << 16});
    m.optional_integer("relative_attention_max_distance", "relative_distance", {1, 1 << 20});
    m.real("dropout_rate", "dropout", 0.1, probability_range);
    m.real("layer_norm_epsilon", "epsilon", 1e-6, epsilon_range);
    m.boolean("tie_word_embeddings", "tied_embeddings", true);
    m.must_be("is_encoder_decoder", true, true, "one stack only");
    // transformers: "relu", "gated-gelu" (meaning gelu_new, for compatibility), "gated-silu".
    const std::string projection = m.string("feed_forward_proj", "relu");
    if (projection == "relu") m.put("activation", "relu", "feed_forward_proj");
    else if (projection == "gelu") m.put("activation", "gelu", "feed_forward_proj");
    else if (projection == "gated-gelu") m.put("activation", "gated_gelu_tanh", "feed_forward_proj");
    else if (projection == "gated-silu") m.put("activation", "gated_silu", "feed_forward_proj");
    else
        m.refuse("feed_forward_proj",
                 fmt::format("feed_forward_proj = {} is not supported", core::in_quotes(projection)),
                 "supported: relu, gelu, gated-gelu or gated-silu");
    if (m.has("n_positions")) m.required_integer("n_positions", "sequence_length", token_range);
    else {
        m.put("sequence_length", std::int64_t(512), "n_positions");
        m.assume(
            "the config states no n_positions: 512 tokens each in encoder and decoder, T5's pre-training "
            "length (arXiv 1910.10683, section 3.1.2)");
    }
}

void vit(ConfigMapper& m, const Value& config) {
    m.required_integer("hidden_size", "hidden", hidden_range);
    m.required_integer("num_hidden_layers", "layers", layer_range);
    m.required_integer("num_attention_heads", "heads", head_range);
    m.required_integer("intermediate_size", "ffn", width_range);
    m.required_integer("image_size", "image_size", image_range);
    m.required_integer("patch_size", "patch", image_range);
    m.optional_integer("num_channels", "channels", {1, 1 << 10});
    m.boolean("qkv_bias", "qkv_bias", true);
    m.real("hidden_dropout_prob", "dropout", 0.0, probability_range);
    m.real("attention_probs_dropout_prob", "attention_dropout", 0.0, probability_range);
    m.real("layer_norm_eps", "epsilon", 1e-12, epsilon_range);
    if (const std::string activation = m.string("hidden_act", "gelu"); activation != "gelu")
        m.refuse("hidden_act", fmt::format("hidden_act = {} is not supported", core::in_quotes(activation)),
                 "supported: gelu");
    if (const Value* labels = config.find("id2label"); labels && labels->is_table() && labels->size() >= 2)
        m.put("classes", std::ssize(*labels), "id2label");
    else {
        m.put("classes", std::int64_t(1000), "id2label");
        m.assume("the config states no labels: 1000 classes (ImageNet-1k)");
    }
}

struct ModelType {
    const char* model_type;
    const char* family;
};
constexpr ModelType model_types[] = {
    {"bert", "bert"}, {"bloom", "bloom"}, {"gpt2", "gpt2"},       {"gpt_neox", "gpt-neox"},
    {"gptj", "gptj"}, {"llama", "llama"}, {"mistral", "mistral"}, {"mixtral", "mixtral"},
    {"mpt", "mpt"},   {"opt", "opt"},     {"phi3", "llama"},      {"qwen2", "qwen2"},
    {"t5", "t5"},     {"vit", "vit"}};

}  // namespace

std::vector<std::string> supported_model_types() {
    std::vector<std::string> names;
    for (const ModelType& type : model_types) names.push_back(type.model_type);
    return names;
}

std::optional<Value> description_of_config(const Value& config, std::vector<std::string>& assumptions,
                                           core::Diagnostics& diagnostics) {
    const std::size_t errors = diagnostics.error_count();
    core::TableReader reader(config, "", diagnostics);
    if (diagnostics.error_count() != errors) return std::nullopt;
    const std::string type = reader.required_string("model_type");
    if (diagnostics.error_count() != errors) return std::nullopt;
    const char* family = nullptr;
    for (const ModelType& known : model_types)
        if (type == known.model_type) family = known.family;
    if (!family) {
        const std::string near = core::did_you_mean(type, supported_model_types());
        reader.error("model_type", fmt::format("model_type = {} is not supported", core::in_quotes(type)),
                     (near.empty() ? "" : fmt::format("did you mean {}? ", core::in_quotes(near))) +
                         "supported: " + core::list_in_words(supported_model_types()));
        return std::nullopt;
    }

    ConfigMapper m(config, assumptions, diagnostics);
    m.put("family", family, "model_type");
    if (type == "bert") bert(m);
    else if (type == "bloom") bloom(m);
    else if (type == "gpt2") gpt2(m);
    else if (type == "gpt_neox") gpt_neox(m);
    else if (type == "gptj") gptj(m);
    else if (type == "llama") llama(m);
    else if (type == "mistral") mistral(m);
    else if (type == "mixtral") mixtral(m);
    else if (type == "mpt") mpt(m, config, diagnostics);
    else if (type == "opt") opt(m);
    else if (type == "phi3") phi3(m);
    else if (type == "qwen2") qwen2(m);
    else if (type == "t5") t5(m);
    else vit(m, config);
    if (m.has("quantization_config"))
        assumptions.push_back("quantization_config is of inference: training keeps the plan's precision");
    if (diagnostics.error_count() != errors) return std::nullopt;
    return std::move(m.description);
}

}  // namespace model
