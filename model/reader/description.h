// A model as a table of our own: family and dimensions, as in the catalogue, a .toml file or an inline
// [model]. model/catalog/README.md lists the keys.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/diagnostics_fwd.h"
#include "core/value.h"
#include "model/model_graph.h"

namespace model {

// Keys about the origin of an entry, which no model is built from: admitted in every description.
bool is_provenance(std::string_view key);

// Every key is known, every dimension is bounded (a hostile file gets a diagnostic, not an allocation), every
// division comes out even; else diagnostics and nothing. `path` prefixes keys in messages ("model"); `name`
// is the graph's name when the table has none.
std::optional<ModelGraph> build_from_description(const core::Value& table, const std::string& path,
                                                 const std::string& name, core::Diagnostics& diagnostics);

std::vector<std::string> family_names();

}  // namespace model
