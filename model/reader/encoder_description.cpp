#include "model/reader/encoder_description.h"

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "model/builder/deberta.h"
#include "model/builder/encoder_decoder.h"
#include "model/builder/vision/clip.h"
#include "model/reader/bounds.h"

namespace model {

namespace {

using core::TableReader;

// Of models whose scores are written out as tensors: [heads, tokens, tokens] is counted in 64 bits.
constexpr core::IntegerRange written_token_range{1, 1 << 16};

void within(TableReader& reader, const char* key, std::int64_t tokens, std::int64_t positions) {
    if (tokens > positions)
        reader.error(
            key,
            fmt::format("{} = {} is longer than the positions, {}", reader.path_of(key), tokens, positions),
            fmt::format("choose at most {}", positions));
}

Activation plain_activation(TableReader& reader) {
    const std::string chosen =
        reader.optional_choice("activation", {"gelu", "gelu_tanh", "relu", "silu"}).value_or("gelu");
    return chosen == "relu"        ? Activation::relu
           : chosen == "silu"      ? Activation::silu
           : chosen == "gelu_tanh" ? Activation::gelu_tanh
                                   : Activation::gelu;
}

void read_common(TableReader& reader, EncoderDecoderDescription& d) {
    d.hidden = reader.required_integer("hidden", hidden_range);
    d.encoder.layers = reader.required_integer("layers", layer_range);
    d.encoder.heads = reader.required_integer("heads", head_range);
    d.encoder.ffn = reader.integer("ffn", 4 * d.hidden, width_range);
    d.decoder.layers = reader.integer("decoder_layers", d.encoder.layers, layer_range);
    d.decoder.heads = reader.integer("decoder_heads", d.encoder.heads, head_range);
    d.decoder.ffn = reader.integer("decoder_ffn", d.encoder.ffn, width_range);
    d.vocabulary = reader.required_integer("vocabulary", vocabulary_range);
    d.activation = plain_activation(reader);
    d.epsilon = reader.real("epsilon", d.epsilon, epsilon_range);
    d.dropout = reader.real("dropout", 0, probability_range);
    d.attention_dropout = reader.real("attention_dropout", 0, probability_range);
    d.activation_dropout = reader.real("activation_dropout", 0, probability_range);
}

std::optional<ModelGraph> finished(TableReader& reader, const EncoderDecoderDescription& d,
                                   std::size_t errors) {
    reader.finish();
    if (reader.diagnostics().error_count() != errors) return std::nullopt;
    must_divide(reader, "heads", d.encoder.heads, "hidden", d.hidden);
    must_divide(reader, "decoder_heads", d.decoder.heads, "hidden", d.hidden);
    if (d.mel_bins == 0) within(reader, "sequence_length", d.encoder.sequence_length, d.encoder.positions);
    within(reader, d.mel_bins > 0 ? "sequence_length" : "decoder_sequence_length", d.decoder.sequence_length,
           d.decoder.positions);
    if (reader.diagnostics().error_count() != errors) return std::nullopt;
    return build_encoder_decoder(d);
}

std::optional<ModelGraph> bart(TableReader& reader, const std::string& name) {
    const std::size_t errors = reader.diagnostics().error_count();
    EncoderDecoderDescription d;
    d.name = name;
    d.position_offset = 2;
    read_common(reader, d);
    d.scales_embeddings = reader.boolean("scaled_embeddings", false);
    d.encoder.positions = d.decoder.positions = reader.required_integer("max_positions", token_range);
    d.encoder.sequence_length = reader.integer("sequence_length", d.encoder.positions, token_range);
    d.decoder.sequence_length =
        reader.integer("decoder_sequence_length", d.encoder.sequence_length, token_range);
    return finished(reader, d, errors);
}

std::optional<ModelGraph> whisper(TableReader& reader, const std::string& name) {
    const std::size_t errors = reader.diagnostics().error_count();
    EncoderDecoderDescription d;
    d.name = name;
    d.family = "whisper";
    d.has_norms_before = true;
    d.has_key_bias = d.has_embedding_norm = false;
    read_common(reader, d);
    d.mel_bins = reader.integer("mel_bins", 80, {1, 1 << 12});
    d.encoder.positions = d.encoder.sequence_length = reader.integer("source_positions", 1500, token_range);
    d.decoder.positions = reader.required_integer("max_positions", token_range);
    d.decoder.sequence_length = reader.integer("sequence_length", d.decoder.positions, token_range);
    return finished(reader, d, errors);
}

std::optional<ModelGraph> clip(TableReader& reader, const std::string& name) {
    const std::size_t errors = reader.diagnostics().error_count();
    ClipDescription d;
    d.name = name;
    const auto tower = [&](ClipDescription::Tower& t, const std::string& prefix) {
        const auto key = [&](const char* own) { return prefix + own; };
        t.hidden = reader.required_integer(key("hidden"), hidden_range);
        t.layers = reader.required_integer(key("layers"), layer_range);
        t.heads = reader.required_integer(key("heads"), head_range);
        t.ffn = reader.integer(key("ffn"), 4 * t.hidden, width_range);
        t.epsilon = reader.real(key("epsilon"), t.epsilon, epsilon_range);
        t.attention_dropout = reader.real(key("attention_dropout"), 0, probability_range);
        t.has_quick_gelu = reader.boolean(key("quick_gelu"), true);
    };
    tower(d.vision, "");
    tower(d.text, "text_");
    d.image_size = reader.required_integer("image_size", image_range);
    d.patch = reader.required_integer("patch", image_range);
    d.channels = reader.integer("channels", 3, {1, 1 << 10});
    d.vocabulary = reader.required_integer("vocabulary", vocabulary_range);
    d.positions = reader.integer("max_positions", 77, token_range);
    d.sequence_length = reader.integer("sequence_length", d.positions, token_range);
    d.projection = reader.integer("projection", 512, hidden_range);
    reader.finish();
    if (reader.diagnostics().error_count() != errors) return std::nullopt;
    must_divide(reader, "heads", d.vision.heads, "hidden", d.vision.hidden);
    must_divide(reader, "text_heads", d.text.heads, "text_hidden", d.text.hidden);
    must_divide(reader, "patch", d.patch, "image_size", d.image_size);
    within(reader, "sequence_length", d.sequence_length, d.positions);
    if (reader.diagnostics().error_count() != errors) return std::nullopt;
    return build_clip(d);
}

void read_relative_positions(TableReader& reader, DebertaDescription& d) {
    d.relative_rows = 2 * reader.integer("relative_span", 0, {0, 1 << 16});
    d.has_content_to_position = reader.boolean("content_to_position", false);
    d.has_position_to_content = reader.boolean("position_to_content", false);
    d.shares_position_projections = reader.boolean("shared_position_projections", false);
    d.has_relative_norm = reader.boolean("relative_norm", false);
    const bool has_terms = d.has_content_to_position || d.has_position_to_content;
    if (d.relative_rows > 0 && !has_terms)
        reader.error(
            "relative_span",
            fmt::format("{}: no scores read the relative positions", reader.path_of("relative_span")),
            "set content_to_position, position_to_content or both");
    if (d.relative_rows == 0 && (has_terms || d.has_relative_norm))
        reader.error("relative_span",
                     fmt::format("{} is missing: there are no relative positions to read",
                                 reader.path_of("relative_span")),
                     "give the span in tokens (or buckets) on either side");
}

void read_convolution(TableReader& reader, DebertaDescription& d) {
    d.convolution_kernel = reader.integer("convolution_kernel", 0, {0, 63});
    d.convolution_groups = reader.integer("convolution_groups", 1, hidden_range);
    const std::string activation =
        reader.optional_choice("convolution_activation", {"tanh", "gelu", "relu"}).value_or("tanh");
    d.convolution_activation = activation == "tanh"   ? OperatorKind::tanh
                               : activation == "gelu" ? OperatorKind::gelu
                                                      : OperatorKind::relu;
    if (d.convolution_kernel > 0 && d.convolution_kernel % 2 == 0)
        reader.error("convolution_kernel",
                     fmt::format("{} = {} is even, which changes the number of tokens",
                                 reader.path_of("convolution_kernel"), d.convolution_kernel),
                     "choose an odd number");
}

std::optional<ModelGraph> deberta(TableReader& reader, const std::string& name) {
    const std::size_t errors = reader.diagnostics().error_count();
    DebertaDescription d;
    d.name = name;
    d.hidden = reader.required_integer("hidden", hidden_range);
    d.layers = reader.required_integer("layers", layer_range);
    d.heads = reader.required_integer("heads", head_range);
    const auto head_dimension = reader.optional_integer("head_dimension", head_dimension_range);
    d.ffn = reader.integer("ffn", 4 * d.hidden, width_range);
    d.vocabulary = reader.required_integer("vocabulary", vocabulary_range);
    d.embedding = reader.integer("embedding", d.hidden, hidden_range);
    d.positions = reader.integer("max_positions", 0, {0, written_token_range.greatest});
    d.sequence_length =
        reader.integer("sequence_length", d.positions > 0 ? d.positions : 512, written_token_range);
    d.token_types = reader.integer("token_types", 0, {0, 1 << 20});
    read_relative_positions(reader, d);
    read_convolution(reader, d);
    d.activation = plain_activation(reader);
    d.epsilon = reader.real("epsilon", d.epsilon, epsilon_range);
    d.dropout = reader.real("dropout", 0, probability_range);
    d.attention_dropout = reader.real("attention_dropout", 0, probability_range);
    reader.finish();
    if (reader.diagnostics().error_count() != errors) return std::nullopt;
    if (!head_dimension) must_divide(reader, "heads", d.heads, "hidden", d.hidden);
    must_divide(reader, "convolution_groups", d.convolution_groups, "hidden", d.hidden);
    if (d.positions > 0) within(reader, "sequence_length", d.sequence_length, d.positions);
    if (reader.diagnostics().error_count() != errors) return std::nullopt;
    d.head_dimension = head_dimension.value_or(d.hidden / d.heads);
    return build_deberta(d);
}

struct Family {
    const char* name;
    std::optional<ModelGraph> (*read)(TableReader&, const std::string&);
};
constexpr Family families[] = {{"bart", bart}, {"clip", clip}, {"deberta", deberta}, {"whisper", whisper}};

}  // namespace

std::vector<std::string> encoder_family_names() {
    std::vector<std::string> names;
    for (const Family& family : families) names.push_back(family.name);
    return names;
}

std::optional<ModelGraph> encoder_from(TableReader& reader, const std::string& family,
                                       const std::string& name) {
    for (const Family& known : families)
        if (family == known.name) return known.read(reader, name);
    return std::nullopt;
}

}  // namespace model
