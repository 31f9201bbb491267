#include "exec/checkpoint/manifest.h"

#include <charconv>
#include <limits>
#include <span>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/document.h"
#include "core/reader.h"
#include "exec/checkpoint/checksum.h"
#include "exec/checkpoint/durable_file.h"

namespace exec {

namespace {

constexpr const char* manifest_name = "manifest.json";
// 1 had neither data_identity nor recipe; 1 and 2 had rank-N.state; 4 has places, and only where there are
// such is it written.
constexpr int manifest_version = 4, shared_version = 3;
// A million steps' losses take some 25 MB.
constexpr std::size_t largest_manifest_bytes = std::size_t{256} << 20;

core::Value to_value(const CheckpointManifest& manifest) {
    core::Value value = core::Value::table();
    value["format"] = "smexec checkpoint";
    value["version"] = manifest.places.empty() ? shared_version : manifest_version;
    value["step"] = manifest.step;
    value["next_sample"] = manifest.next_sample;
    value["seed"] = fmt::format("{}", manifest.seed);  // JSON numbers lose bits above 2^53
    value["model"] = manifest.model;
    value["model_hash"] = manifest.model_hash;
    value["program_hash"] = manifest.program_hash;
    value["plan"] = manifest.plan;
    value["data"] = manifest.data;
    if (!manifest.data_identity.empty()) value["data_identity"] = manifest.data_identity;
    if (!manifest.recipe.empty()) value["recipe"] = manifest.recipe;
    if (!manifest.initial_weights.empty()) value["initial_weights"] = manifest.initial_weights;
    if (manifest.loss_scaling) {
        core::Value& scaling = value["loss_scaling"] = core::Value::table();
        scaling["scale"] = double{manifest.loss_scaling->scale};
        scaling["good_steps"] = manifest.loss_scaling->good_steps;
        scaling["left_out"] = manifest.loss_scaling->left_out;
    }
    value["files"] = core::Value::array();
    for (const CheckpointFile& file : manifest.files) {
        core::Value entry = core::Value::table();
        entry["name"] = file.name;
        entry["bytes"] = static_cast<std::int64_t>(file.bytes);
        entry["xxh64"] = fmt::format("{:016x}", file.checksum);
        if (!manifest.places.empty()) entry["place"] = manifest.places[value["files"].size()];
        value["files"].append(std::move(entry));
    }
    value["losses"] = core::Value(manifest.losses);
    return value;
}

std::uint64_t checksum_of(const core::Value& value) {
    const std::string text = core::to_json(value);
    return checksum(std::as_bytes(std::span(text)));
}

template <class Number>
bool read_number(const std::string& text, Number& number, int base) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, base);
    return error == std::errc() && end == text.data() + text.size();
}

std::optional<LossScaling> read_loss_scaling(core::TableReader& reader, core::Diagnostics& diagnostics) {
    const core::Value* const table = reader.optional_table("loss_scaling");
    if (!table) return std::nullopt;
    core::TableReader of_scaling(*table, "loss_scaling", diagnostics);
    LossScaling scaling;
    scaling.scale = static_cast<float>(of_scaling.required_real("scale", {.least = 1e-30}));
    scaling.good_steps = of_scaling.required_integer("good_steps", {.least = 0});
    scaling.left_out = of_scaling.required_integer("left_out", {.least = 0});
    of_scaling.finish();
    return scaling;
}

void read_file(const core::Value& entry, const std::string& path, CheckpointManifest& manifest,
               core::Diagnostics& diagnostics) {
    core::TableReader reader(entry, "files", diagnostics);
    CheckpointFile& file = manifest.files.emplace_back();
    file.name = reader.required_string("name");
    if (file.name.find('/') != std::string::npos)
        diagnostics.error({path, 0, 0}, "files.name", "a file's name has no folder", "");
    file.bytes = reader.required_integer("bytes", {.least = 0});
    if (!read_number(reader.required_string("xxh64"), file.checksum, 16))
        diagnostics.error({path, 0, 0}, "files.xxh64", "no hexadecimal number", "");
    if (std::string place = reader.string("place", ""); !place.empty())
        manifest.places.push_back(std::move(place));
    reader.finish();
}

}  // namespace

std::string text_of(const CheckpointManifest& manifest) {
    core::Value value = to_value(manifest);
    const std::uint64_t sum = checksum_of(value);
    value["xxh64"] = fmt::format("{:016x}", sum);
    return core::to_json(value) + "\n";
}

std::optional<CheckpointManifest> read_manifest_text(const std::string& text, const std::string& path,
                                                     std::string& failure) {
    core::Diagnostics diagnostics;
    const std::optional<core::Value> document = core::parse_json(text, path, diagnostics);
    CheckpointManifest manifest;
    if (document) {
        // The last member is the checksum of the others as they were written.
        core::Value rest = *document;
        std::uint64_t sum = 0;
        if (!rest.is_table() || rest.size() == 0 || rest.members().back().first != "xxh64" ||
            !rest.members().back().second.is_string() ||
            !read_number(rest.members().back().second.string(), sum, 16)) {
            failure = fmt::format("{} is damaged: it has no checksum", path);
            return std::nullopt;
        }
        rest.members().pop_back();
        if (sum != checksum_of(rest)) {
            failure = fmt::format("{} is damaged: its checksum is {:016x}, {:016x} was written", path,
                                  checksum_of(rest), sum);
            return std::nullopt;
        }
        core::TableReader reader(rest, "", diagnostics);
        if (reader.required_string("format") != "smexec checkpoint" ||
            reader.required_integer("version", {.least = 1}) > manifest_version)
            diagnostics.error({path, 0, 0}, "format", "this is no checkpoint of this version", "");
        manifest.step = reader.required_integer("step", {.least = 0});
        manifest.next_sample = reader.required_integer("next_sample", {.least = 0});
        if (!read_number(reader.required_string("seed"), manifest.seed, 10))
            diagnostics.error({path, 0, 0}, "seed", "seed is no number", "");
        manifest.model = reader.required_string("model");
        manifest.model_hash = reader.required_string("model_hash");
        manifest.program_hash = reader.required_string("program_hash");
        manifest.plan = reader.required_string("plan");
        manifest.data = reader.required_string("data");
        manifest.data_identity = reader.string("data_identity", "");
        manifest.recipe = reader.string("recipe", "");
        manifest.initial_weights = reader.string("initial_weights", "");
        manifest.loss_scaling = read_loss_scaling(reader, diagnostics);
        if (const core::Value* losses = reader.required_array("losses"))
            for (const core::Value& loss : losses->items())
                manifest.losses.push_back(loss.is_number() ? loss.number()
                                                           : std::numeric_limits<double>::quiet_NaN());
        if (const core::Value* files = reader.required_array("files"))
            for (const core::Value& entry : files->items()) read_file(entry, path, manifest, diagnostics);
        if (!manifest.places.empty() && manifest.places.size() != manifest.files.size())
            diagnostics.error({path, 0, 0}, "files.place", "some files have a place and some have none", "");
        reader.finish();
    }
    if (!diagnostics.has_errors()) return manifest;
    failure = fmt::format("{} is damaged: {}", path, diagnostics.entries().front().message);
    return std::nullopt;
}

std::optional<CheckpointManifest> read_manifest(const std::string& folder, std::string& failure) {
    const std::string path = folder + "/" + manifest_name;
    core::Diagnostics diagnostics;
    const std::optional<std::string> text =
        core::read_file(path, diagnostics, {}, {}, largest_manifest_bytes);
    if (text) return read_manifest_text(*text, path, failure);
    failure = fmt::format("{} is damaged: {}", path, diagnostics.entries().front().message);
    return std::nullopt;
}

void write_manifest(const std::string& folder, const std::string& text) {
    const std::span<const std::byte> content = std::as_bytes(std::span(text));
    write_durably(folder, manifest_name, {&content, 1});
}

}  // namespace exec
