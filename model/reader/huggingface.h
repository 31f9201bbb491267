// Hugging Face config.json to a description of our own. Every key that changes the architecture is honoured
// or refused; the dozens that do not are passed over.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/diagnostics_fwd.h"
#include "core/value.h"

namespace model {

// A table for build_from_description; its values keep their places in the config. `assumptions` collects what
// the config does not say or we do not model.
std::optional<core::Value> description_of_config(const core::Value& config,
                                                 std::vector<std::string>& assumptions,
                                                 core::Diagnostics& diagnostics);

std::vector<std::string> supported_model_types();

}  // namespace model
