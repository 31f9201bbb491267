// Encoder-decoders of BART's kind, DeBERTa v2, and models of several configs in one.
#include <string>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "model/reader/bounds.h"
#include "model/reader/huggingface/family_specials.h"

namespace model::family {

namespace {

void two_stacks(ConfigMapper& m) {
    m.required_integer("d_model", "hidden", hidden_range);
    m.required_integer("encoder_layers", "layers", layer_range);
    m.required_integer("encoder_attention_heads", "heads", head_range);
    m.required_integer("encoder_ffn_dim", "ffn", width_range);
    m.required_integer("decoder_layers", "decoder_layers", layer_range);
    m.required_integer("decoder_attention_heads", "decoder_heads", head_range);
    m.required_integer("decoder_ffn_dim", "decoder_ffn", width_range);
    m.required_integer("vocab_size", "vocabulary", vocabulary_range);
    m.activation("activation_function", "gelu");
    m.real("attention_dropout", "attention_dropout", 0, probability_range);
    m.real("activation_dropout", "activation_dropout", 0, probability_range);
    m.must_be("tie_word_embeddings", true, true, "an output embedding of its own");
    m.must_be("is_encoder_decoder", true, true, "one stack only");
    // Layers that are dropped by chance make a step no longer.
    m.ignore({"encoder_layerdrop", "decoder_layerdrop", "num_hidden_layers"});
}

}  // namespace

void bart(ConfigMapper& m) {
    two_stacks(m);
    m.real("dropout", "dropout", 0.1, probability_range);
    m.required_integer("max_position_embeddings", "max_positions", token_range);
    m.boolean("scale_embedding", "scaled_embeddings", false);
    // Older files have keys that transformers' class does not read.
    m.ignore({"_num_labels", "add_bias_logits", "add_final_layer_norm", "classif_dropout",
              "extra_pos_embeddings", "force_bos_token_to_be_generated", "normalize_before",
              "normalize_embedding", "save_step", "static_position_embeddings"});
    m.assume("encoder and decoder have as many tokens as they have positions, unless told otherwise");
}

void whisper(ConfigMapper& m) {
    two_stacks(m);
    m.real("dropout", "dropout", 0, probability_range);
    m.integer_or("num_mel_bins", "mel_bins", 80, {1, 1 << 12});
    m.integer_or("max_source_positions", "source_positions", 1500, token_range);
    m.required_integer("max_target_positions", "max_positions", token_range);
    // SpecAugment masks the input; the other keys are of classification and of time stamps.
    m.ignore({"apply_spec_augment", "classifier_proj_size", "mask_feature_length", "mask_feature_min_masks",
              "mask_feature_prob", "mask_time_length", "mask_time_min_masks", "mask_time_prob",
              "median_filter_width", "scale_embedding", "use_weighted_layer_sum"});
    m.assume(
        "the sinusoids of audio positions are no parameters and take no memory; keys without biases are a "
        "product of their own, joined with queries and values by a copy");
}

namespace {

void relative_positions(ConfigMapper& m) {
    std::string terms;
    if (const Value* given = m.config().find("pos_att_type"); given && given->is_string())
        terms = m.string("pos_att_type", "");
    else if (m.has("pos_att_type"))
        for (const std::string& term : m.strings("pos_att_type")) terms += term + "|";
    const bool has_norm = m.string("norm_rel_ebd", "none").find("layer_norm") != std::string::npos;
    const std::int64_t buckets = m.integer("position_buckets", -1, {-1, 1 << 16}),
                       most = m.integer("max_relative_positions", -1, {-1, 1 << 16}),
                       positions = m.integer("max_position_embeddings", 512, {1, 1 << 16});
    const bool shares = m.boolean("share_att_key", false);
    if (!m.boolean("relative_attention", false)) {
        if (has_norm)
            m.refuse("norm_rel_ebd", "norm_rel_ebd is a norm of relative positions, which are not there",
                     "set relative_attention = true, or norm_rel_ebd to \"none\"");
        return;
    }
    const bool has_content = terms.find("c2p") != std::string::npos,
               has_position = terms.find("p2c") != std::string::npos;
    if (!has_content && !has_position)
        return m.refuse("pos_att_type", "pos_att_type names no scores that read relative positions",
                        "give c2p, p2c or both, or relative_attention = false");
    m.put("relative_span", buckets > 0 ? buckets : most > 0 ? most : positions, "relative_attention");
    m.put("content_to_position", has_content, "pos_att_type");
    m.put("position_to_content", has_position, "pos_att_type");
    m.put("shared_position_projections", shares, "share_att_key");
    m.put("relative_norm", has_norm, "norm_rel_ebd");
    m.assume(
        "projections of relative positions are computed for each sample, though a micro-batch could share "
        "them; attention is unfused, as in transformers");
}

}  // namespace

void deberta(ConfigMapper& m) {
    usual_dimensions(m);
    m.required_integer("intermediate_size", "ffn", width_range);
    m.optional_integer("embedding_size", "embedding", hidden_range);
    m.optional_integer("attention_head_size", "head_dimension", head_dimension_range);
    m.integer_or("type_vocab_size", "token_types", 0, {0, 1 << 20});
    const std::int64_t positions = m.integer("max_position_embeddings", 512, {1, 1 << 16});
    if (m.boolean("position_biased_input", true))
        m.put("max_positions", positions, "max_position_embeddings");
    m.put("sequence_length", positions, "max_position_embeddings");
    relative_positions(m);
    if (m.integer("conv_kernel_size", 0, {0, 63}) > 0) {
        m.integer_or("conv_kernel_size", "convolution_kernel", 0, {0, 63});
        m.integer_or("conv_groups", "convolution_groups", 1, hidden_range);
        m.put("convolution_activation", m.string("conv_act", "tanh"), "conv_act");
    }
    m.activation("hidden_act", "gelu");
    m.real("layer_norm_eps", "epsilon", 1e-7, epsilon_range);
    m.real("hidden_dropout_prob", "dropout", 0.1, probability_range);
    m.real("attention_probs_dropout_prob", "attention_dropout", 0.1, probability_range);
    m.must_be("legacy", true, true, "the head of masked tokens of lm_predictions");
    m.must_be("tie_word_embeddings", true, true, "an output embedding of its own");
    m.ignore({"conv_act", "conv_groups", "pooler_dropout", "pooler_hidden_act", "pooler_hidden_size"});
    m.assume("the head of masked tokens is in the graph; replaced-token detection (arXiv 2111.09543) is not");
}

namespace {

// The dimensions of one of CLIP's configs, each under `prefix` with its name in a description.
void tower(ConfigMapper& m, const char* config, const std::string& prefix, bool is_text) {
    static const Value none = Value::table();
    const Value* table = m.table(config);
    std::vector<std::string> assumptions;
    ConfigMapper own(table ? *table : none, assumptions, m.diagnostics());
    const std::int64_t width = is_text ? 512 : 768;
    own.integer_or("hidden_size", "hidden", width, hidden_range);
    own.integer_or("intermediate_size", "ffn", 4 * width, width_range);
    own.integer_or("num_hidden_layers", "layers", 12, layer_range);
    own.integer_or("num_attention_heads", "heads", width / 64, head_range);
    own.real("layer_norm_eps", "epsilon", 1e-5, epsilon_range);
    own.real("attention_dropout", "attention_dropout", 0, probability_range);
    const std::string activation = own.string("hidden_act", "quick_gelu");
    if (activation != "quick_gelu" && activation != "gelu")
        own.refuse("hidden_act", fmt::format("hidden_act = {} is not supported", core::in_quotes(activation)),
                   "supported: quick_gelu or gelu");
    own.put("quick_gelu", activation == "quick_gelu", "hidden_act");
    own.ignore({"dropout", "projection_dim"});
    std::vector<std::pair<std::string, std::string>> names;
    for (const char* key : {"hidden", "ffn", "layers", "heads", "epsilon", "attention_dropout", "quick_gelu"})
        names.emplace_back(key, prefix + key);
    if (is_text) {
        own.integer_or("vocab_size", "vocabulary", 49408, vocabulary_range);
        own.integer_or("max_position_embeddings", "max_positions", 77, token_range);
    } else {
        own.integer_or("image_size", "image_size", 224, image_range);
        own.integer_or("patch_size", "patch", 32, image_range);
        own.integer_or("num_channels", "channels", 3, {1, 1 << 10});
    }
    own.finish();
    for (const char* key : {"vocabulary", "max_positions", "image_size", "patch", "channels"})
        if (own.description.find(key)) names.emplace_back(key, key);
    for (const auto& [from, to] : names) m.description[to] = *own.description.find(from);
}

}  // namespace

void clip(ConfigMapper& m) {
    tower(m, "vision_config", "", false);
    tower(m, "text_config", "text_", true);
    m.integer_or("projection_dim", "projection", 512, hidden_range);
    m.ignore({"logit_scale_init_value", "text_config_dict", "vision_config_dict"});
    m.assume(
        "an image is compared with its own text; the similarities with the other samples of a batch, and the "
        "gathering of their rows over ranks, are not in the graph");
}

}  // namespace model::family
