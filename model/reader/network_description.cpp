#include "model/reader/network_description.h"

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "model/builder/recurrent.h"
#include "model/builder/vision/unet.h"
#include "model/builder/vision/yolo.h"
#include "model/reader/bounds.h"

namespace model {

namespace {

using core::TableReader;

std::optional<ModelGraph> lstm(TableReader& reader, const std::string& name) {
    const std::size_t errors = reader.diagnostics().error_count();
    LstmDescription d;
    d.name = name;
    d.hidden = reader.required_integer("hidden", hidden_range);
    d.layers = reader.required_integer("layers", layer_range);
    d.vocabulary = reader.required_integer("vocabulary", vocabulary_range);
    d.sequence_length = reader.required_integer("sequence_length", token_range);
    d.embedding = reader.integer("embedding", d.hidden, hidden_range);
    d.is_tied = reader.boolean("tied_embeddings", false);
    d.dropout = reader.real("dropout", 0, probability_range);
    d.last_hidden = d.is_tied ? d.embedding : d.hidden;
    reader.finish();
    if (reader.diagnostics().error_count() != errors) return std::nullopt;
    return build_lstm(d);
}

std::optional<ModelGraph> unet3d(TableReader& reader, const std::string& name) {
    const std::size_t errors = reader.diagnostics().error_count();
    UnetDescription d;
    d.name = name;
    reader.required_array("volume");
    d.volume = reader.optional_integers("volume", {1, 1 << 12}).value_or(std::vector<std::int64_t>());
    d.channels = reader.integer("channels", d.channels, {1, 1 << 10});
    d.classes = reader.integer("classes", d.classes, {2, 1 << 12});
    d.base = reader.integer("base", d.base, {2, 1 << 10});
    d.levels = reader.integer("levels", d.levels, {2, 8});
    d.is_padded = reader.boolean("padded", false);
    reader.finish();
    if (reader.diagnostics().error_count() != errors) return std::nullopt;
    if (d.volume.size() != 3)
        reader.error("volume", fmt::format("{} has {} extents", reader.path_of("volume"), d.volume.size()),
                     "give three: x, y and z");
    for (const std::int64_t extent : d.volume)
        if (!unet_extent(d, extent))
            reader.error("volume",
                         fmt::format("{}: an extent of {} does not go through {} levels",
                                     reader.path_of("volume"), extent, d.levels),
                         d.is_padded
                             ? "every level below the first halves it: choose a multiple of a power "
                               "of two"
                             : "every level takes four voxels, and halves before it does: 132 and 116 "
                               "go through 4 levels");
    if (reader.diagnostics().error_count() != errors) return std::nullopt;
    return build_unet(d);
}

std::optional<ModelGraph> yolov4(TableReader& reader, const std::string& name) {
    const std::size_t errors = reader.diagnostics().error_count();
    YoloDescription d;
    d.name = name;
    d.image_size = reader.integer("image_size", d.image_size, {64, 1 << 12});
    d.channels = reader.integer("channels", d.channels, {1, 1 << 10});
    d.classes = reader.integer("classes", d.classes, {1, 1 << 16});
    reader.finish();
    constexpr std::int64_t coarsest = 32;  // pixels of a cell of the coarsest level
    if (d.image_size % coarsest != 0)
        reader.error(
            "image_size",
            fmt::format("{} = {} is no multiple of {}", reader.path_of("image_size"), d.image_size, coarsest),
            "choose 416, 512 or 608");
    if (reader.diagnostics().error_count() != errors) return std::nullopt;
    return build_yolo(d);
}

struct Family {
    const char* name;
    std::optional<ModelGraph> (*read)(TableReader&, const std::string&);
};
constexpr Family families[] = {{"lstm", lstm}, {"unet3d", unet3d}, {"yolov4", yolov4}};

}  // namespace

std::vector<std::string> network_family_names() {
    std::vector<std::string> names;
    for (const Family& family : families) names.push_back(family.name);
    return names;
}

std::optional<ModelGraph> network_from(TableReader& reader, const std::string& family,
                                       const std::string& name) {
    for (const Family& known : families)
        if (family == known.name) return known.read(reader, name);
    return std::nullopt;
}

}  // namespace model
