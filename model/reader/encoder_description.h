// Descriptions of models with an encoder that neither builder/bert.h nor builder/t5.h makes: BART, Whisper,
// CLIP and DeBERTa.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/reader.h"
#include "model/model_graph.h"

namespace model {

std::vector<std::string> encoder_family_names();
// `family` is one of those names.
std::optional<ModelGraph> encoder_from(core::TableReader& reader, const std::string& family,
                                       const std::string& name);

}  // namespace model
