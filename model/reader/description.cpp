#include "model/reader/description.h"

#include <algorithm>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/reader.h"
#include "model/builder/bert.h"
#include "model/builder/t5.h"
#include "model/builder/transformer_layer.h"
#include "model/builder/transformer_xl.h"
#include "model/builder/vision/convolutional.h"
#include "model/builder/vision/detection.h"
#include "model/builder/vision/vision_transformer.h"
#include "model/reader/bounds.h"
#include "model/reader/decoder_description.h"
#include "model/reader/encoder_description.h"
#include "model/reader/network_description.h"

namespace model {

namespace {

using core::TableReader;

const std::vector<std::string> provenance_keys = {"family", "name",    "source",
                                                  "notes",  "aliases", "published_parameters"};

std::optional<ModelGraph> bert(TableReader& reader, const std::string& name,
                               std::vector<std::string>& assumptions) {
    BertDescription d;
    d.name = name;
    core::Diagnostics& diagnostics = reader.diagnostics();
    const std::size_t errors = diagnostics.error_count();
    d.hidden = reader.required_integer("hidden", hidden_range);
    d.layers = reader.required_integer("layers", layer_range);
    d.heads = reader.required_integer("heads", head_range);
    d.ffn = reader.integer("ffn", 4 * d.hidden, width_range);
    d.vocabulary = reader.required_integer("vocabulary", vocabulary_range);
    const auto positions = reader.optional_integer("max_positions", token_range);
    const auto sequence_length = reader.optional_integer("sequence_length", token_range);
    d.position_offset = reader.integer("position_offset", 0, {0, 1 << 20});
    d.token_types = reader.integer("token_types", 2, {0, 1 << 20});
    d.activation = read_activation(reader, Activation::gelu);
    d.epsilon = reader.real("epsilon", d.epsilon, epsilon_range);
    d.hidden_dropout = reader.real("dropout", 0, probability_range);
    d.attention_dropout = reader.real("attention_dropout", 0, probability_range);
    const std::string task =
        reader.optional_choice("task", {"pretraining", "masked_lm", "question_answering", "classification"})
            .value_or("pretraining");
    d.task = task == "pretraining"          ? BertTask::pretraining
             : task == "masked_lm"          ? BertTask::masked_lm
             : task == "question_answering" ? BertTask::question_answering
                                            : BertTask::classification;
    d.masked_positions = reader.integer("masked_positions", 0, {0, token_range.greatest});
    d.classes = reader.integer("classes", 2, class_range);
    reader.finish();
    if (diagnostics.error_count() != errors) return std::nullopt;
    must_divide(reader, "heads", d.heads, "hidden", d.hidden);
    if (!positions && !sequence_length)
        reader.error("sequence_length",
                     fmt::format("{} is missing, and so is max_positions", reader.path_of("sequence_length")),
                     "give the tokens of a sample");
    d.sequence_length = sequence_length ? *sequence_length : positions.value_or(1);
    d.positions = positions.value_or(d.sequence_length);
    if (!positions)
        assumptions.push_back(fmt::format(
            "max_positions is not given: the learned position table has sequence_length = {} rows",
            d.sequence_length));
    if (d.sequence_length > d.positions)
        reader.error("sequence_length",
                     fmt::format("{} = {} is longer than the learned positions, {}",
                                 reader.path_of("sequence_length"), d.sequence_length, d.positions),
                     fmt::format("choose at most {}", d.positions));
    if (d.masked_positions > d.sequence_length)
        reader.error("masked_positions",
                     fmt::format("{} = {} is more than the tokens of a sample, {}",
                                 reader.path_of("masked_positions"), d.masked_positions, d.sequence_length),
                     "give 0 for logits of all tokens");
    if (is_gated(d.activation))
        reader.error(
            "activation",
            fmt::format("{} is gated, which BERT's feed-forward is not", reader.path_of("activation")),
            "choose gelu, gelu_tanh, relu or silu");
    if (diagnostics.error_count() != errors) return std::nullopt;
    return build_bert(d);
}

std::optional<ModelGraph> t5(TableReader& reader, const std::string& name) {
    T5Description d;
    d.name = name;
    core::Diagnostics& diagnostics = reader.diagnostics();
    const std::size_t errors = diagnostics.error_count();
    d.hidden = reader.required_integer("hidden", hidden_range);
    d.encoder_layers = reader.required_integer("layers", layer_range);
    d.decoder_layers = reader.integer("decoder_layers", d.encoder_layers, layer_range);
    d.heads = reader.required_integer("heads", head_range);
    const auto head_dimension = reader.optional_integer("head_dimension", head_dimension_range);
    d.ffn = reader.required_integer("ffn", width_range);
    d.vocabulary = reader.required_integer("vocabulary", vocabulary_range);
    d.encoder_sequence_length = reader.required_integer("sequence_length", token_range);
    d.decoder_sequence_length =
        reader.integer("decoder_sequence_length", d.encoder_sequence_length, token_range);
    d.relative_buckets = reader.integer("relative_buckets", 32, {1, 1 << 16});
    d.relative_distance = reader.integer("relative_distance", 128, {1, 1 << 20});
    d.activation = read_activation(reader, Activation::relu);
    d.is_tied = reader.boolean("tied_embeddings", true);
    d.epsilon = reader.real("epsilon", d.epsilon, epsilon_range);
    d.dropout = reader.real("dropout", 0, probability_range);
    reader.finish();
    if (diagnostics.error_count() != errors) return std::nullopt;
    if (!head_dimension) must_divide(reader, "heads", d.heads, "hidden", d.hidden);
    d.head_dimension = head_dimension.value_or(d.hidden / d.heads);
    if (diagnostics.error_count() != errors) return std::nullopt;
    return build_t5(d);
}

std::optional<ModelGraph> vit(TableReader& reader, const std::string& name) {
    VitDescription d;
    d.name = name;
    core::Diagnostics& diagnostics = reader.diagnostics();
    const std::size_t errors = diagnostics.error_count();
    d.hidden = reader.required_integer("hidden", hidden_range);
    d.layers = reader.required_integer("layers", layer_range);
    d.heads = reader.required_integer("heads", head_range);
    d.ffn = reader.integer("ffn", 4 * d.hidden, width_range);
    d.image_size = reader.required_integer("image_size", image_range);
    d.patch = reader.required_integer("patch", image_range);
    d.channels = reader.integer("channels", 3, {1, 1 << 10});
    d.classes = reader.integer("classes", 1000, class_range);
    d.has_qkv_bias = reader.boolean("qkv_bias", true);
    d.leading_tokens = reader.integer("leading_tokens", 1, {1, 2});
    d.epsilon = reader.real("epsilon", d.epsilon, epsilon_range);
    d.dropout = reader.real("dropout", 0, probability_range);
    d.attention_dropout = reader.real("attention_dropout", 0, probability_range);
    reader.finish();
    if (diagnostics.error_count() != errors) return std::nullopt;
    must_divide(reader, "heads", d.heads, "hidden", d.hidden);
    must_divide(reader, "patch", d.patch, "image_size", d.image_size);
    if (diagnostics.error_count() != errors) return std::nullopt;
    return build_vit(d);
}

std::optional<ModelGraph> swin(TableReader& reader, const std::string& name) {
    SwinDescription d;
    d.name = name;
    core::Diagnostics& diagnostics = reader.diagnostics();
    const std::size_t errors = diagnostics.error_count();
    d.hidden = reader.required_integer("hidden", {1, 1 << 13});
    reader.required_array("depths");
    d.depths = reader.optional_integers("depths", {1, 256}).value_or(std::vector<std::int64_t>());
    reader.required_array("stage_heads");
    d.heads = reader.optional_integers("stage_heads", head_range).value_or(std::vector<std::int64_t>());
    d.image_size = reader.required_integer("image_size", image_range);
    d.patch = reader.integer("patch", 4, image_range);
    d.window = reader.integer("window", 7, {1, 256});
    d.channels = reader.integer("channels", 3, {1, 1 << 10});
    d.classes = reader.integer("classes", 1000, class_range);
    d.mlp_ratio = reader.integer("mlp_ratio", 4, {1, 64});
    d.epsilon = reader.real("epsilon", d.epsilon, epsilon_range);
    reader.finish();
    if (diagnostics.error_count() != errors) return std::nullopt;
    if (d.depths.empty() || d.depths.size() > 8 || d.depths.size() != d.heads.size()) {
        reader.error("stage_heads",
                     fmt::format("{} has {} stages, depths has {}", reader.path_of("stage_heads"),
                                 d.heads.size(), d.depths.size()),
                     "give 1 to 8 stages, one number each in both");
        return std::nullopt;
    }
    must_divide(reader, "patch", d.patch, "image_size", d.image_size);
    for (std::size_t stage = 0; stage < d.depths.size() && diagnostics.error_count() == errors; ++stage) {
        const std::int64_t hidden = d.hidden << stage, scale = std::int64_t(1) << stage;
        must_divide(reader, "stage_heads", d.heads[stage], "the stage's hidden size", hidden);
        must_divide(reader, "window", d.window * scale,
                    "the image's side in patches (window times 2 to the stage)", d.image_size / d.patch);
    }
    if (diagnostics.error_count() != errors) return std::nullopt;
    return build_swin(d);
}

std::optional<ModelGraph> resnet(TableReader& reader, const std::string& name) {
    ResnetDescription d;
    d.name = name;
    core::Diagnostics& diagnostics = reader.diagnostics();
    const std::size_t errors = diagnostics.error_count();
    d.depth = reader.required_integer("depth", {1, 1000});
    d.width_factor = reader.integer("width_factor", 1, {1, 64});
    d.widens_reduction = reader.boolean("widens_reduction", true);
    d.image_size = reader.required_integer("image_size", {32, image_range.greatest});
    d.channels = reader.integer("channels", 3, {1, 1 << 10});
    d.classes = reader.integer("classes", 1000, class_range);
    d.base_channels = reader.integer("base_channels", 64, {1, 1 << 12});
    d.has_small_stem = reader.boolean("small_stem", false);
    reader.finish();
    if (diagnostics.error_count() != errors) return std::nullopt;
    if (std::find(std::begin(resnet_depths), std::end(resnet_depths), d.depth) == std::end(resnet_depths))
        reader.error("depth", fmt::format("{} = {} is no ResNet", reader.path_of("depth"), d.depth),
                     "choose 18, 34, 50, 101 or 152");
    if (d.width_factor != 1 && d.depth < 50)
        reader.error(
            "width_factor",
            fmt::format("{} = {} needs bottleneck blocks", reader.path_of("width_factor"), d.width_factor),
            "choose depth 50, 101 or 152");
    if (diagnostics.error_count() != errors) return std::nullopt;
    return build_resnet(d);
}

std::optional<ModelGraph> ssd(TableReader& reader, const std::string& name) {
    SsdDescription d;
    d.name = name;
    d.classes = reader.integer("classes", d.classes, class_range);
    reader.finish();
    return reader.diagnostics().has_errors() ? std::nullopt : std::optional(build_ssd(d));
}

std::optional<ModelGraph> mask_rcnn(TableReader& reader, const std::string& name) {
    MaskRcnnDescription d;
    d.name = name;
    d.image_size = reader.integer("image_size", d.image_size, {256, 4096});
    d.classes = reader.integer("classes", d.classes, class_range);
    d.regions = reader.integer("regions", d.regions, {64, 1 << 12});
    reader.finish();
    return reader.diagnostics().has_errors() ? std::nullopt : std::optional(build_mask_rcnn(d));
}

std::optional<ModelGraph> transformer_xl(TableReader& reader, const std::string& name) {
    TransformerXlDescription d;
    d.name = name;
    core::Diagnostics& diagnostics = reader.diagnostics();
    const std::size_t errors = diagnostics.error_count();
    d.hidden = reader.required_integer("hidden", hidden_range);
    d.layers = reader.required_integer("layers", layer_range);
    d.heads = reader.required_integer("heads", head_range);
    d.ffn = reader.integer("ffn", 4 * d.hidden, width_range);
    d.vocabulary = reader.required_integer("vocabulary", vocabulary_range);
    d.sequence_length = reader.required_integer("sequence_length", token_range);
    d.memory_length = reader.integer("memory_length", d.sequence_length, token_range);
    d.width_divisor = reader.integer("width_divisor", 1, {1, 64});
    d.dropout = reader.real("dropout", d.dropout, probability_range);
    d.attention_dropout = reader.real("attention_dropout", 0, probability_range);
    reader.finish();
    if (diagnostics.error_count() != errors) return std::nullopt;
    must_divide(reader, "heads", d.heads, "hidden", d.hidden);
    if (diagnostics.error_count() != errors) return std::nullopt;
    return build_transformer_xl(d);
}

std::optional<ModelGraph> convnet(TableReader& reader, const std::string& name) {
    ConvnetDescription d;
    d.name = name;
    core::Diagnostics& diagnostics = reader.diagnostics();
    const std::size_t errors = diagnostics.error_count();
    d.image_size = reader.required_integer("image_size", image_range);
    d.channels = reader.integer("channels", 1, {1, 1 << 10});
    d.kernel = reader.integer("kernel", 3, {1, 64});
    d.classes = reader.required_integer("classes", class_range);
    reader.required_array("convolutions");
    d.convolutions =
        reader.optional_integers("convolutions", {1, 1 << 14}).value_or(std::vector<std::int64_t>());
    d.dense = reader.optional_integers("dense", {1, 1 << 18}).value_or(std::vector<std::int64_t>());
    reader.finish();
    if (diagnostics.error_count() != errors) return std::nullopt;
    if (d.convolutions.size() + d.dense.size() > 1000)
        reader.error("convolutions", "more than 1000 layers", "check the lists for slips");
    if (std::ssize(d.convolutions) * (d.kernel - 1) >= d.image_size)
        reader.error("convolutions",
                     fmt::format("{} valid convolutions of kernel {} leave nothing of an image of {}",
                                 d.convolutions.size(), d.kernel, d.image_size),
                     "use fewer or a larger image");
    if (diagnostics.error_count() != errors) return std::nullopt;
    return build_convnet(d);
}

bool is_one_of(const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

bool is_provenance(std::string_view key) {
    return std::find(provenance_keys.begin(), provenance_keys.end(), key) != provenance_keys.end();
}

std::vector<std::string> family_names() {
    std::vector<std::string> names;
    for (const std::string& name : decoder_family_names()) names.push_back(name);
    for (const char* name :
         {"bert", "t5", "vit", "swin", "resnet", "convnet", "ssd", "mask_rcnn", "transformer_xl"})
        names.push_back(name);
    for (const std::string& name : encoder_family_names()) names.push_back(name);
    for (const std::string& name : network_family_names()) names.push_back(name);
    return names;
}

std::optional<ModelGraph> build_from_description(const core::Value& table, const std::string& path,
                                                 const std::string& name, core::Diagnostics& diagnostics) {
    TableReader reader(table, path, diagnostics);
    const std::size_t errors = diagnostics.error_count();
    const std::string family = reader.required_choice("family", family_names());
    const std::string own_name = reader.string("name", name);
    for (const std::string& key : provenance_keys)
        if (key != "family" && key != "name") reader.ignore(key);
    if (diagnostics.error_count() != errors) return std::nullopt;

    std::vector<std::string> assumptions;
    std::optional<ModelGraph> graph;
    if (family == "bert") graph = bert(reader, own_name, assumptions);
    else if (family == "t5") graph = t5(reader, own_name);
    else if (family == "vit") graph = vit(reader, own_name);
    else if (family == "swin") graph = swin(reader, own_name);
    else if (family == "resnet") graph = resnet(reader, own_name);
    else if (family == "convnet") graph = convnet(reader, own_name);
    else if (family == "ssd") graph = ssd(reader, own_name);
    else if (family == "mask_rcnn") graph = mask_rcnn(reader, own_name);
    else if (family == "transformer_xl") graph = transformer_xl(reader, own_name);
    else if (is_one_of(encoder_family_names(), family)) graph = encoder_from(reader, family, own_name);
    else if (is_one_of(network_family_names(), family)) graph = network_from(reader, family, own_name);
    else graph = decoder_from(reader, family, own_name, assumptions);
    if (graph) graph->assumptions = std::move(assumptions);
    return graph;
}

}  // namespace model
