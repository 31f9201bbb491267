// Encoders, encoder-decoders and vision transformers.
#include <cmath>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "model/reader/bounds.h"
#include "model/reader/huggingface/family_specials.h"

namespace model::family {

namespace {

void bert_like(ConfigMapper& m) {
    usual_dimensions(m);
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
    m.ignore({"directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
              "pooler_size_per_head", "pooler_type"});
}

void t5_with(ConfigMapper& m, const char* default_projection) {
    m.ignore({"dense_act_fn", "is_gated_act", "scale_decoder_outputs"});
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
    const std::string projection = m.string("feed_forward_proj", default_projection);
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

void classes(ConfigMapper& m) {
    const Value* labels = m.config().find("id2label");
    if (labels && labels->is_table() && labels->size() >= 2)
        return m.put("classes", std::int64_t(std::ssize(*labels)), "id2label");
    m.put("classes", std::int64_t(1000), "id2label");
    m.assume("the config states no labels: 1000 classes (ImageNet-1k)");
}

}  // namespace

void bert(ConfigMapper& m) {
    bert_like(m);
    m.assume(
        "heads of pre-training (masked tokens and next sentence) are in the graph; parameters counts "
        "BertModel with its pooler, as published");
}

void t5(ConfigMapper& m) { t5_with(m, "relu"); }

void mt5(ConfigMapper& m) { t5_with(m, "gated-gelu"); }

void vit(ConfigMapper& m) {
    m.ignore({"encoder_stride", "pooler_act", "pooler_output_size"});
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
    classes(m);
}

void deit(ConfigMapper& m) {
    vit(m);
    m.put("leading_tokens", std::int64_t(2), "model_type");
    m.assume("the class token's classifier is in the graph, as in DeiTForImageClassification");
}

void swin(ConfigMapper& m) {
    m.required_integer("embed_dim", "hidden", {1, 1 << 13});
    for (const auto& [theirs, ours] : {std::pair{"depths", "depths"}, std::pair{"num_heads", "stage_heads"}})
        if (m.has(theirs)) {
            Value list = Value::array();
            for (const std::int64_t number : m.integers(theirs, {1, head_range.greatest}))
                list.append(number);
            m.put(ours, std::move(list), theirs);
        }
    m.integer_or("image_size", "image_size", 224, image_range);
    m.integer_or("patch_size", "patch", 4, image_range);
    m.integer_or("num_channels", "channels", 3, {1, 1 << 10});
    m.integer_or("window_size", "window", 7, {1, 256});
    const double ratio = m.real("mlp_ratio", 4.0, {1, 64});
    if (ratio != std::floor(ratio))
        m.refuse("mlp_ratio", fmt::format("mlp_ratio = {} is no whole number", ratio),
                 "choose a whole number");
    m.put("mlp_ratio", static_cast<std::int64_t>(ratio), "mlp_ratio");
    m.real("layer_norm_eps", "epsilon", 1e-5, epsilon_range);
    m.must_be("qkv_bias", true, true, "queries, keys and values without biases");
    m.must_be("use_absolute_embeddings", false, false, "absolute positions");
    if (const std::string activation = m.string("hidden_act", "gelu"); activation != "gelu")
        m.refuse("hidden_act", fmt::format("hidden_act = {} is not supported", core::in_quotes(activation)),
                 "supported: gelu");
    for (const char* key : {"hidden_dropout_prob", "attention_probs_dropout_prob"})
        if (m.real(key, 0, probability_range) > 0)
            m.refuse(key, fmt::format("{} above 0 is not supported", key), "only 0 can be modelled");
    // Stochastic depth leaves out branches of whole samples; on average it is no less work than none.
    m.ignore({"drop_path_rate", "encoder_stride", "hidden_size", "num_layers", "out_features", "out_indices",
              "stage_names", "path_norm"});
    classes(m);
}

// BERT without its second task; position rows 0 and 1 stand before the first token's (padding_idx + 1).
void roberta(ConfigMapper& m) {
    bert_like(m);
    const std::int64_t offset = m.integer("pad_token_id", 1, {0, 1 << 20}) + 1;
    if (const Value* rows = m.description.find("max_positions")) {
        if (rows->integer() <= offset)
            return m.refuse("max_position_embeddings",
                            "max_position_embeddings leaves no position for a token",
                            fmt::format("choose more than {}", offset));
        m.put("max_positions", rows->integer() - offset, "max_position_embeddings");
    }
    m.put("position_offset", offset, "pad_token_id");
    m.put("task", "masked_lm", "model_type");
    m.assume("the head of masked tokens is in the graph and in the count of what is trained");
}

void distilbert(ConfigMapper& m) {
    m.required_integer("dim", "hidden", hidden_range);
    m.required_integer("n_layers", "layers", layer_range);
    m.required_integer("n_heads", "heads", head_range);
    m.required_integer("hidden_dim", "ffn", width_range);
    m.required_integer("vocab_size", "vocabulary", vocabulary_range);
    m.required_integer("max_position_embeddings", "max_positions", token_range);
    m.put("token_types", std::int64_t(0), "model_type");
    m.put("task", "masked_lm", "model_type");
    m.real("dropout", "dropout", 0.1, probability_range);
    m.real("attention_dropout", "attention_dropout", 0.1, probability_range);
    m.activation("activation", "gelu");
    m.must_be("sinusoidal_pos_embds", false, false, "positions that are not trained");
    m.must_be("tie_word_embeddings", true, true, "an output embedding of its own");
    m.ignore({"qa_dropout", "seq_classif_dropout", "tie_weights_"});
    m.assume("the head of masked tokens is in the graph and in the count of what is trained");
}

}  // namespace model::family
