#include "model/reader/decoder_description.h"

#include <algorithm>
#include <cmath>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "model/builder/decoder.h"
#include "model/builder/transformer_layer.h"
#include "model/reader/bounds.h"

namespace model {

namespace {

using core::TableReader;

const std::vector<std::pair<std::string, Activation>> activations = {
    {"gelu", Activation::gelu},
    {"gelu_tanh", Activation::gelu_tanh},
    {"relu", Activation::relu},
    {"silu", Activation::silu},
    {"gated_silu", Activation::gated_silu},
    {"gated_gelu", Activation::gated_gelu},
    {"gated_gelu_tanh", Activation::gated_gelu_tanh}};

// Defaults of the families of decoders, before any key is read.
struct Preset {
    const char* family;
    const char* graph_family;
    void (*apply)(DecoderDescription&);
};

void apply_gpt(DecoderDescription&) {}
void apply_opt(DecoderDescription& d) {
    d.activation = Activation::relu;
    d.position_offset = 2;  // OPTLearnedPositionalEmbedding keeps two rows in front
}
void apply_bloom(DecoderDescription& d) {
    d.encoding = PositionEncoding::alibi;
    d.activation = Activation::gelu_tanh;
    d.has_embedding_norm = true;
}
void apply_mpt(DecoderDescription& d) {
    d.encoding = PositionEncoding::alibi;
    d.norm = NormKind::layer_norm_without_shift;
    d.has_qkv_bias = d.has_attention_output_bias = d.has_mlp_bias = false;
}
void apply_gpt_neox(DecoderDescription& d) {
    d.encoding = PositionEncoding::rotary;
    d.rotary_fraction = 0.25;
    d.is_parallel_residual = true;
    d.is_tied = false;
}
void apply_gptj(DecoderDescription& d) {
    d.encoding = PositionEncoding::rotary;
    d.rotary_fraction = 0.25;
    d.activation = Activation::gelu_tanh;
    d.is_parallel_residual = d.shares_norm = true;
    d.has_qkv_bias = d.has_attention_output_bias = false;
    d.has_head_bias = true;
    d.is_tied = false;
}
void apply_llama(DecoderDescription& d) {
    d.encoding = PositionEncoding::rotary;
    d.norm = NormKind::rms_norm;
    d.activation = Activation::gated_silu;
    d.has_qkv_bias = d.has_attention_output_bias = d.has_mlp_bias = false;
    d.is_tied = false;
}
void apply_qwen2(DecoderDescription& d) {
    apply_llama(d);
    d.has_qkv_bias = true;
    d.epsilon = 1e-6;
}

const Preset presets[] = {
    {"gpt", "gpt", apply_gpt},       {"gpt2", "gpt", apply_gpt},          {"opt", "gpt", apply_opt},
    {"bloom", "gpt", apply_bloom},   {"mpt", "gpt", apply_mpt},           {"gpt-neox", "gpt", apply_gpt_neox},
    {"gptj", "gpt", apply_gptj},     {"llama", "llama", apply_llama},     {"mistral", "llama", apply_llama},
    {"qwen2", "llama", apply_qwen2}, {"mixtral", "mixtral", apply_llama}, {"stack", "stack", apply_llama}};

template <class Kind>
using Names = std::vector<std::pair<std::string, Kind>>;

const Names<NormKind> norm_kinds = {
    {"layer_norm", NormKind::layer_norm},
    {"layer_norm_without_shift", NormKind::layer_norm_without_shift},
    {"layer_norm_without_parameters", NormKind::layer_norm_without_parameters},
    {"rms_norm", NormKind::rms_norm}};
const Names<NormPlace> norm_places = {
    {"before", NormPlace::before}, {"behind", NormPlace::behind}, {"both", NormPlace::both}};
const Names<QueryKeyNorm> query_key_norms = {{"none", QueryKeyNorm::none},
                                             {"per_head", QueryKeyNorm::per_head},
                                             {"all_heads", QueryKeyNorm::all_heads}};
const Names<PositionEncoding> encodings = {{"learned", PositionEncoding::learned},
                                           {"rotary", PositionEncoding::rotary},
                                           {"alibi", PositionEncoding::alibi}};

constexpr core::RealRange factor_range{1e-9, 1e9};

class DecoderReader {
public:
    DecoderReader(TableReader& reader, const Preset& preset, std::vector<std::string>& assumptions)
        : reader_(reader), family_(preset.family), assumptions_(assumptions) {
        preset.apply(d);
        d.family = preset.graph_family;
        is_llama_like_ = d.norm == NormKind::rms_norm;
    }

    // False where anything was diagnosed.
    bool read() {
        const std::size_t errors = reader_.diagnostics().error_count();
        read_dimensions();
        read_positions();
        read_norms();
        read_attention();
        read_switches();
        read_mixture();
        reader_.finish();
        if (reader_.diagnostics().error_count() != errors) return false;
        check_attention();
        check_tokens();
        check_layers();
        check_size();
        return reader_.diagnostics().error_count() == errors;
    }

    DecoderDescription d;

private:
    template <class Kind>
    Kind choice(const char* key, const Names<Kind>& kinds, Kind fallback) {
        std::vector<std::string> names;
        for (const auto& [name, kind] : kinds) names.push_back(name);
        const std::optional<std::string> chosen = reader_.optional_choice(key, names);
        for (const auto& [name, kind] : kinds)
            if (chosen == name) return kind;
        return fallback;
    }
    std::vector<std::int64_t> layers(const char* key) {
        return reader_.optional_integers(key, {0, layer_range.greatest})
            .value_or(std::vector<std::int64_t>());
    }
    void error(const char* key, const std::string& what, const std::string& hint) {
        reader_.error(key, fmt::format("{} {}", reader_.path_of(key), what), hint);
    }

    void read_dimensions() {
        d.hidden = reader_.required_integer("hidden", hidden_range);
        d.layers = reader_.required_integer("layers", layer_range);
        d.heads = reader_.required_integer("heads", head_range);
        d.kv_heads = reader_.integer("kv_heads", d.heads, head_range);
        head_dimension_ = reader_.optional_integer("head_dimension", head_dimension_range);
        // Llama's width has no rule that all of them follow; the GPTs' is 4 h.
        d.ffn = is_llama_like_ ? reader_.required_integer("ffn", width_range)
                               : reader_.integer("ffn", 4 * d.hidden, width_range);
        d.vocabulary = reader_.required_integer("vocabulary", vocabulary_range);
        positions_ = reader_.optional_integer("max_positions", token_range);
        sequence_length_ = reader_.optional_integer("sequence_length", token_range);
    }

    void read_positions() {
        d.encoding = choice("position_encoding", encodings, d.encoding);
        d.position_offset = d.encoding == PositionEncoding::learned
                                ? reader_.integer("position_offset", d.position_offset, {0, 1 << 16})
                                : 0;
        d.rotary_fraction = reader_.real("rotary_fraction", d.rotary_fraction, {0.001, 1});
        d.rotary_base = reader_.real("rotary_base", d.rotary_base, {1, 1e12});
        d.window_rotary_base = reader_.optional_real("window_rotary_base", {1, 1e12});
        d.unrotated_layers = layers("unrotated_layers");
        d.rotation_interval = reader_.integer("rotation_interval", 0, {0, layer_range.greatest});
    }

    void read_norms() {
        d.epsilon = reader_.real("epsilon", d.epsilon, epsilon_range);
        d.norm = choice("norm", norm_kinds, d.norm);
        if (!is_llama_like_)
            if (const auto has_shift = reader_.optional_boolean("norm_shift"))
                d.norm = *has_shift ? NormKind::layer_norm : NormKind::layer_norm_without_shift;
        d.norm_place = choice("norm_place", norm_places, d.norm_place);
        d.has_first_norm = reader_.boolean("first_norm", true);
        d.shares_norm = reader_.boolean("shared_norm", d.shares_norm);
        d.has_embedding_norm = reader_.boolean("embedding_norm", d.has_embedding_norm);
        d.is_parallel_residual = reader_.boolean("parallel_residual", d.is_parallel_residual);
    }

    void read_attention() {
        d.is_causal = reader_.boolean("causal", true);
        d.window = reader_.integer("window", 0, {0, token_range.greatest});
        d.first_window_layer = reader_.integer("first_window_layer", 0, {0, layer_range.greatest});
        d.window_layers = layers("window_layers");
        d.global_interval = reader_.integer("global_interval", 0, {0, layer_range.greatest});
        d.has_chunks = reader_.boolean("chunked_windows", false);
        d.query_key_norm = choice("query_key_norm", query_key_norms, d.query_key_norm);
        d.query_key_norm_kind = choice("query_key_norm_kind", norm_kinds, d.query_key_norm_kind);
        const std::string scales =
            reader_.optional_choice("query_key_norm_scales", {"shared", "own", "none"}).value_or("shared");
        d.query_key_norm_is_per_head = scales == "own";
        d.query_key_norm_has_parameters = scales != "none";
        d.score_soft_cap = reader_.optional_real("score_soft_cap", factor_range);
        d.softmax_scale = reader_.real("score_scale", 0, {0, factor_range.greatest});
        d.has_sinks = reader_.boolean("attention_sinks", false);
        d.clips = reader_.boolean("clip_qkv", false);
        LatentAttention& latent = d.latent;
        latent.query_rank = reader_.integer("query_rank", 0, {0, width_range.greatest});
        latent.key_value_rank = reader_.integer("key_value_rank", 0, {0, width_range.greatest});
        latent.rotary_dimension = reader_.integer("rotary_dimension", 0, {0, head_dimension_range.greatest});
        latent.value_dimension = reader_.integer("value_dimension", 0, {0, head_dimension_range.greatest});
        latent.has_bias = reader_.boolean("latent_bias", false);
    }

    void read_switches() {
        d.activation = read_activation(reader_, d.activation);
        d.is_tied = reader_.boolean("tied_embeddings", d.is_tied);
        d.has_qkv_bias = reader_.boolean("qkv_bias", d.has_qkv_bias);
        d.has_attention_output_bias = reader_.boolean("attention_output_bias", d.has_attention_output_bias);
        d.has_mlp_bias = reader_.boolean("mlp_bias", d.has_mlp_bias);
        d.has_head_bias = reader_.boolean("head_bias", d.has_head_bias);
        d.has_head_transform = reader_.boolean("head_transform", false);
        d.head_transform_has_bias = reader_.boolean("head_transform_bias", false);
        d.prediction_layers = reader_.integer("prediction_layers", 0, {0, 64});
        d.embedding_dropout = reader_.real("embedding_dropout", 0, probability_range);
        d.hidden_dropout = reader_.real("dropout", 0, probability_range);
        d.attention_dropout = reader_.real("attention_dropout", 0, probability_range);
        d.embedding_scale = reader_.real("embedding_scale", 1, factor_range);
        d.residual_scale = reader_.real("residual_scale", 1, factor_range);
        d.logit_scale = reader_.real("logit_scale", 1, factor_range);
        d.logit_soft_cap = reader_.optional_real("logit_soft_cap", factor_range);
    }

    void read_mixture() {
        MixtureDescription& m = d.mixture;
        if (family_ == "mixtral") {
            m.experts = reader_.required_integer("experts", expert_range);
            m.experts_per_token = reader_.required_integer("experts_per_token", expert_range);
        } else {
            m.experts = reader_.integer("experts", 0, {0, expert_range.greatest});
            m.experts_per_token = m.experts > 0 ? reader_.required_integer("experts_per_token", expert_range)
                                                : reader_.integer("experts_per_token", 0, expert_range);
        }
        m.ffn = reader_.integer("expert_ffn", 0, {0, width_range.greatest});
        m.interval = reader_.integer("expert_interval", 1, layer_range);
        m.dense_layers_first = reader_.integer("dense_layers_first", 0, {0, layer_range.greatest});
        m.layers = layers("mixture_layers");
        m.shared_ffn = reader_.integer("shared_expert_ffn", 0, {0, width_range.greatest});
        m.has_shared_gate = reader_.boolean("shared_expert_gate", false);
        m.capacity_factor = reader_.real("capacity_factor", 0, {0, 1e6});
        m.auxiliary_loss = reader_.real("auxiliary_loss", 0, {0, 1e6});
        m.router_has_bias = reader_.boolean("router_bias", false);
        m.experts_have_bias = reader_.boolean("expert_bias", false);
        m.has_sigmoid_scores =
            reader_.optional_choice("router_scores", {"softmax", "sigmoid"}).value_or("softmax") == "sigmoid";
        m.has_plain_weights = !reader_.boolean("normalized_expert_weights", true);
        m.routed_scale = reader_.real("routed_scale", 1, factor_range);
        m.expert_groups = reader_.integer("expert_groups", 1, expert_range);
        m.chosen_groups = reader_.integer("chosen_groups", m.expert_groups, expert_range);
        m.activation_limit = reader_.optional_real("expert_activation_limit", factor_range);
    }

    void check_attention() {
        if (!head_dimension_) must_divide(reader_, "heads", d.heads, "hidden", d.hidden);
        d.head_dimension = head_dimension_.value_or(std::max<std::int64_t>(1, d.hidden / d.heads));
        must_divide(reader_, "kv_heads", d.kv_heads, "heads", d.heads);
        if (d.is_parallel_residual && d.shares_norm && d.norm == NormKind::rms_norm) d.shares_norm = false;
        if (d.is_parallel_residual && d.norm_place != NormPlace::before)
            error("norm_place", "is of layers whose branches follow each other",
                  "leave parallel_residual out");
        if (d.latent.key_value_rank == 0) {
            for (const char* key : {"query_rank", "rotary_dimension", "value_dimension", "latent_bias"})
                if (reader_.has(key))
                    error(key, "is of latent attention, which key_value_rank asks for",
                          "give key_value_rank");
            return;
        }
        if (d.is_parallel_residual)
            error("key_value_rank", "is of layers whose branches follow each other",
                  "leave parallel_residual out");
        if (d.latent.value_dimension == 0) d.latent.value_dimension = d.head_dimension;
        if (d.latent.rotary_dimension < 1 || d.latent.rotary_dimension >= d.head_dimension)
            error("rotary_dimension",
                  fmt::format("= {} is not a part of a head of {}", d.latent.rotary_dimension,
                              d.head_dimension),
                  "give the columns of a head that are rotated");
        if (d.kv_heads != d.heads)
            error("kv_heads", "of latent attention are its heads", "leave kv_heads out");
    }

    void check_tokens() {
        if (!positions_ && !sequence_length_)
            error("sequence_length", "is missing, and so is max_positions", "give the tokens of a sample");
        d.sequence_length = sequence_length_ ? *sequence_length_ : positions_.value_or(1);
        if (d.encoding == PositionEncoding::learned) {
            d.positions = positions_.value_or(d.sequence_length) + d.position_offset;
            if (!positions_)
                assumptions_.push_back(fmt::format(
                    "max_positions is not given: the learned position table has sequence_length = {} rows",
                    d.sequence_length));
            if (positions_ && d.sequence_length > *positions_)
                error("sequence_length",
                      fmt::format("= {} is longer than the learned positions, {}", d.sequence_length,
                                  *positions_),
                      fmt::format("choose at most {} or give a larger max_positions", *positions_));
        } else if (positions_ && d.sequence_length > *positions_) {
            assumptions_.push_back(
                fmt::format("sequence length {} is beyond the {} positions the model was trained for",
                            d.sequence_length, *positions_));
        }
        if (d.has_chunks && d.window > 0 && d.window < d.sequence_length && d.sequence_length % d.window != 0)
            error("window",
                  fmt::format("= {} does not divide the {} tokens of a sample into chunks", d.window,
                              d.sequence_length),
                  "choose a sequence_length that it divides");
    }

    void check_layers() {
        const std::pair<const char*, const std::vector<std::int64_t>*> lists[] = {
            {"window_layers", &d.window_layers},
            {"unrotated_layers", &d.unrotated_layers},
            {"mixture_layers", &d.mixture.layers}};
        for (const auto& [key, list] : lists)
            for (const std::int64_t layer : *list)
                if (layer >= d.layers) {
                    error(key,
                          fmt::format("names layer {} of {} layers, 0 to {}", layer, d.layers, d.layers - 1),
                          "name layers of the model");
                    break;
                }
        if (!d.window_layers.empty() && d.window == 0)
            error("window_layers", "needs a window", "give window");
        const MixtureDescription& m = d.mixture;
        if (m.experts_per_token > m.experts)
            error("experts_per_token",
                  fmt::format("= {} is more than experts = {}", m.experts_per_token, m.experts),
                  "choose at most that many");
        if (m.expert_groups > 1 && m.experts % m.expert_groups != 0)
            error("expert_groups",
                  fmt::format("= {} does not divide experts = {}", m.expert_groups, m.experts),
                  "choose a divisor");
    }

    void check_size() {
        std::int64_t mixtures = 0;
        for (std::int64_t layer = 0; layer < d.layers; ++layer) mixtures += d.mixture.is_mixture(layer);
        const MixtureDescription& m = d.mixture;
        const double width = 3.0 * d.hidden;
        const double expert_ffn = m.ffn > 0 ? m.ffn : d.ffn;
        const double of_mixtures = mixtures * width * (expert_ffn * m.experts + m.shared_ffn);
        const double about = of_mixtures + (d.layers - mixtures) * width * d.ffn +
                             4.0 * d.layers * d.hidden * (d.heads * d.head_dimension) +
                             1.0 * d.layers * (d.latent.query_rank + d.latent.key_value_rank) *
                                 (d.heads * d.head_dimension + d.hidden) +
                             2.0 * d.vocabulary * d.hidden;
        if (about > most_parameters)
            reader_.error("hidden",
                          fmt::format("these dimensions make a model of about {:.3g} parameters; {:.0e} is "
                                      "the most",
                                      about, most_parameters),
                          "check the dimensions for slips");
    }

    TableReader& reader_;
    const std::string family_;
    std::vector<std::string>& assumptions_;
    bool is_llama_like_ = false;
    std::optional<std::int64_t> head_dimension_, positions_, sequence_length_;
};

}  // namespace

Activation read_activation(TableReader& reader, Activation fallback) {
    std::vector<std::string> names;
    for (const auto& [name, activation] : activations) names.push_back(name);
    const std::optional<std::string> chosen = reader.optional_choice("activation", names);
    for (const auto& [name, activation] : activations)
        if (chosen == name) return activation;
    return fallback;
}

std::vector<std::string> decoder_family_names() {
    std::vector<std::string> names;
    for (const Preset& preset : presets) names.push_back(preset.family);
    return names;
}

std::optional<ModelGraph> decoder_from(TableReader& reader, const std::string& family,
                                       const std::string& name, std::vector<std::string>& assumptions) {
    for (const Preset& preset : presets) {
        if (family != preset.family) continue;
        DecoderReader decoder(reader, preset, assumptions);
        decoder.d.name = name;
        return decoder.read() ? std::optional(build_decoder(decoder.d)) : std::nullopt;
    }
    return std::nullopt;
}

}  // namespace model
