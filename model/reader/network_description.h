// Descriptions of networks that are no transformers: recurrent language models, networks of volumes, and
// detectors.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/reader.h"
#include "model/model_graph.h"

namespace model {

std::vector<std::string> network_family_names();
// `family` is one of those names.
std::optional<ModelGraph> network_from(core::TableReader& reader, const std::string& family,
                                       const std::string& name);

}  // namespace model
