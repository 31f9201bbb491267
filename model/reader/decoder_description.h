// Descriptions of models of one stack of layers (builder/decoder.h): families are presets of one set of keys.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/reader.h"
#include "model/builder/decoder.h"
#include "model/model_graph.h"

namespace model {

// The key `activation` by our names, as other families read it too.
Activation read_activation(core::TableReader& reader, Activation fallback);

std::vector<std::string> decoder_family_names();
// `family` is one of those names.
std::optional<ModelGraph> decoder_from(core::TableReader& reader, const std::string& family,
                                       const std::string& name, std::vector<std::string>& assumptions);

}  // namespace model
