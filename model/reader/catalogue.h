// Named models: grouped .toml files of descriptions, one table a model.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/diagnostics_fwd.h"
#include "core/value.h"

namespace model {

// The entry with that name or alias; nothing when there is none. Only the file that holds it is parsed.
std::optional<core::Value> catalogue_entry(const std::string& name, core::Diagnostics& diagnostics);
// Folders in which the catalogue is looked for: $SMSIM_MODEL_CATALOG, beside the installed tool, in the
// source tree; empty when nowhere.
std::string catalogue_directory();

}  // namespace model
