#include "model/load.h"

#include <algorithm>
#include <filesystem>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/document.h"
#include "core/reader.h"
#include "model/reader/bounds.h"
#include "model/reader/catalogue.h"
#include "model/reader/description.h"
#include "model/reader/huggingface.h"
#include "model/reader/onnx/onnx.h"

namespace model {

namespace {

namespace fs = std::filesystem;

// A description and what its source left open.
struct Source {
    core::Value description;
    std::string name;
    std::vector<std::string> assumptions;
};

std::string resolved(const std::string& reference, const LoadOptions& options) {
    return fs::path(reference).is_absolute() || options.directory.empty()
               ? reference
               : (fs::path(options.directory) / reference).string();
}

// Of the folder that holds the file; in the local cache of Hugging Face (models--ORG--NAME/snapshots/COMMIT)
// NAME.
std::string name_of_folder(const fs::path& file) {
    std::error_code failure;
    const fs::path folder = fs::absolute(file, failure).lexically_normal().parent_path();
    const fs::path snapshots = folder.parent_path();
    if (snapshots.filename() == "snapshots") {
        const std::string repository = snapshots.parent_path().filename().string();
        if (const std::size_t at = repository.rfind("--"); at != std::string::npos)
            return repository.substr(at + 2);
    }
    return folder.filename().string();
}

// The name a person would give the model in that file: llama-2-7b for llama-2-7b.config.json or
// llama-2-7b/config.json.
std::string name_of_file(const std::string& path) {
    const fs::path file(path);
    std::string stem = file.filename().string();
    for (const char* ending : {".config.json", ".json", ".toml"})
        if (stem.ends_with(ending)) {
            stem.erase(stem.rfind(ending));
            break;
        }
    if (stem == "config")
        if (const std::string folder = name_of_folder(file); !folder.empty()) stem = folder;
    return stem.empty() ? "model" : stem;
}

std::optional<Source> from_config(const core::Value& config, const std::string& name,
                                  core::Diagnostics& diagnostics) {
    Source source;
    source.name = name;
    std::optional<core::Value> description = description_of_config(config, source.assumptions, diagnostics);
    if (!description) return std::nullopt;
    source.description = std::move(*description);
    return source;
}

std::optional<Source> from_file(const std::string& path, core::Diagnostics& diagnostics,
                                const core::SourceLocation& referrer, const std::string& key) {
    const std::optional<core::Value> document = core::load_document(path, diagnostics, referrer, key);
    if (!document) return std::nullopt;
    if (!document->is_table()) {
        diagnostics.error(
            document->location.file.empty() ? core::SourceLocation{path, 1, 1} : document->location, key,
            "a model is described by a table of keys", "see smsim model --help");
        return std::nullopt;
    }
    if (path.ends_with(".json")) return from_config(*document, name_of_file(path), diagnostics);
    // A description alone, or a document with a [model] table.
    const core::Value* table = document->find("model");
    return Source{table && table->is_table() ? *table : *document, name_of_file(path), {}};
}

std::optional<Source> from_catalogue(const std::string& name, const LoadOptions& options,
                                     core::Diagnostics& diagnostics, const core::SourceLocation& referrer,
                                     const std::string& key) {
    const std::size_t errors = diagnostics.error_count();
    std::optional<core::Value> entry = catalogue_entry(name, diagnostics);
    if (entry) return Source{std::move(*entry), name, {}};
    if (diagnostics.error_count() != errors) return std::nullopt;
    const std::vector<std::string> names = catalogue_names();
    const std::string near = core::did_you_mean(name, names);
    std::string hint =
        near.empty()
            ? "smsim model --list shows the catalogue; a config.json or .toml file may be given instead"
            : fmt::format("did you mean {}?", core::in_quotes(near));
    if (names.empty()) hint = "no catalogue was found: set SMSIM_MODEL_CATALOG to its directory";
    std::error_code failure;
    if (fs::is_directory(resolved(name, options), failure))
        hint = fmt::format("a folder with a config.json is written with a slash: {}",
                           core::in_quotes("./" + name));
    diagnostics.error(referrer, key,
                      fmt::format("{} = {} names no model of the catalogue", key, core::in_quotes(name)),
                      hint);
    return std::nullopt;
}

void override_with(core::Value& description, const std::string& key, std::int64_t value,
                   const core::SourceLocation& location) {
    core::Value number(value);
    number.location = number.key_location = location;
    description[key] = std::move(number);
}

// A model of images, say.
bool has_no_tokens(const core::Value& description, const std::string& path, const std::string& name) {
    core::Diagnostics unneeded;
    const std::optional<ModelGraph> graph = build_from_description(description, path, name, unneeded);
    return graph && graph->tokens_per_sample == 0;
}

std::optional<ModelGraph> build(Source source, const LoadOptions& options, const std::string& path,
                                core::Diagnostics& diagnostics, const core::SourceLocation& referrer) {
    core::Value description = source.description;
    if (options.sequence_length)
        override_with(description, "sequence_length", *options.sequence_length, referrer);
    if (options.image_size) override_with(description, "image_size", *options.image_size, referrer);
    core::Diagnostics found;
    std::optional<ModelGraph> graph = build_from_description(description, path, source.name, found);
    if (!graph && options.sequence_length && has_no_tokens(source.description, path, source.name))
        diagnostics.error(referrer, "sequence_length",
                          fmt::format("sequence_length = {}: samples of {} have no tokens",
                                      *options.sequence_length, source.name),
                          "leave the length of sequences (--seq-len) out");
    else diagnostics.append(found);
    if (graph)
        graph->assumptions.insert(graph->assumptions.begin(), source.assumptions.begin(),
                                  source.assumptions.end());
    return graph;
}

bool looks_like_file(const std::string& reference) {
    return reference.ends_with(".json") || reference.ends_with(".toml") || reference.ends_with(".onnx") ||
           reference.find('/') != std::string::npos;
}

std::optional<Source> from_reference(const std::string& reference, const LoadOptions& options,
                                     core::Diagnostics& diagnostics, const core::SourceLocation& referrer,
                                     const std::string& key) {
    if (!looks_like_file(reference)) return from_catalogue(reference, options, diagnostics, referrer, key);
    std::string path = resolved(reference, options);
    std::error_code failure;
    if (fs::is_directory(path, failure))
        path = (fs::path(path) / "config.json").string();  // a checkpoint's folder
    return from_file(path, diagnostics, referrer, key);
}

// [model] with config (or name) = "graph.onnx".
std::optional<ModelGraph> from_onnx_table(core::TableReader& reader, const char* key, LoadOptions options,
                                          core::Diagnostics& diagnostics) {
    const std::size_t errors = diagnostics.error_count();
    const std::string path = reader.required_string(key);
    if (const auto length = reader.optional_integer("sequence_length", token_range);
        length && !options.sequence_length)
        options.sequence_length = length;
    if (const auto size = reader.optional_integer("image_size", image_range); size && !options.image_size)
        options.image_size = size;
    options.allow_unknown = reader.boolean("allow_unknown", options.allow_unknown);
    reader.finish();
    if (diagnostics.error_count() != errors) return std::nullopt;
    return read_onnx(resolved(path, options), options, diagnostics, reader.location_of(key),
                     std::string("model.") + key);
}

}  // namespace

std::optional<ModelGraph> load_model(const std::string& reference, const LoadOptions& options,
                                     core::Diagnostics& diagnostics, const core::SourceLocation& referrer,
                                     const std::string& key) {
    if (reference.ends_with(".onnx"))
        return read_onnx(resolved(reference, options), options, diagnostics, referrer, key);
    std::optional<Source> source = from_reference(reference, options, diagnostics, referrer, key);
    if (!source) return std::nullopt;
    return build(std::move(*source), options, "", diagnostics, referrer);
}

std::optional<ModelGraph> load_model(const core::Value& table, const LoadOptions& options,
                                     core::Diagnostics& diagnostics) {
    const std::size_t errors = diagnostics.error_count();
    core::TableReader reader(table, "model", diagnostics);
    if (diagnostics.error_count() != errors) return std::nullopt;

    for (const char* key : {"config", "name"})
        if (const core::Value* reference = table.find(key); reference && !reader.has("family") &&
                                                            reference->is_string() &&
                                                            reference->string().ends_with(".onnx"))
            return from_onnx_table(reader, key, options, diagnostics);

    std::optional<Source> source;
    if (reader.has("config")) {
        const std::string path = reader.required_string("config");
        if (diagnostics.error_count() != errors) return std::nullopt;
        source = from_reference(
            path.ends_with(".json") || path.find('/') != std::string::npos ? path : path + "/config.json",
            options, diagnostics, reader.location_of("config"), "model.config");
    } else if (reader.has("name") && !reader.has("family")) {
        const std::string name = reader.required_string("name");
        if (diagnostics.error_count() != errors) return std::nullopt;
        source = from_reference(name, options, diagnostics, reader.location_of("name"), "model.name");
    } else if (reader.has("family")) {
        source = Source{core::Value::table(), "model", {}};
        source->description.location = table.location;
    } else {
        reader.error(
            "name", "model.name is missing",
            "give name (catalogue), config (path of a Hugging Face config.json), or family and dimensions");
    }
    if (!source) return std::nullopt;

    // The table's own keys come on top of what it names; they are read, and refused when unknown, with the
    // rest.
    for (const auto& [key, value] : table.members()) {
        if (key == "config" || (key == "name" && !reader.has("family"))) continue;
        source->description[key] = value;
    }
    return build(std::move(*source), options, "model", diagnostics, table.location);
}

}  // namespace model
