// Where models come from: a catalogue name, a Hugging Face config.json, an .onnx graph, a .toml description.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/diagnostics_fwd.h"
#include "core/value.h"
#include "model/model_graph.h"

namespace model {

struct LoadOptions {
    std::optional<std::int64_t> sequence_length = {};  // overrides the model's own default
    std::optional<std::int64_t> image_size = {};
    bool allow_unknown = false;  // ONNX: operators without a counterpart are priced by their bytes
    std::string directory = {};  // relative file references are relative to this ("" = current directory)
};

// MODEL of the command-line contract. Unknown name: did-you-mean; unsupported model_type, missing key: an
// error, never a guess. `referrer` and `key` say who asked.
std::optional<ModelGraph> load_model(const std::string& reference, const LoadOptions& options,
                                     core::Diagnostics& diagnostics,
                                     const core::SourceLocation& referrer = {},
                                     const std::string& key = "model");
// A literal is a reference, not a table.
inline std::optional<ModelGraph> load_model(const char* reference, const LoadOptions& options,
                                            core::Diagnostics& diagnostics) {
    return load_model(std::string(reference), options, diagnostics);
}
// An inline `[model]` table of a scenario or plan: { name = "...", sequence_length = ..., or family and
// dimensions }.
std::optional<ModelGraph> load_model(const core::Value& table, const LoadOptions& options,
                                     core::Diagnostics& diagnostics);

std::vector<std::string> catalogue_names();

}  // namespace model
