// Configurations as written in notebooks and articles: JSON, Python dictionaries, an estimator's call, or
// a fragment of one.
#pragma once

#include <optional>
#include <string>

#include "core/diagnostics_fwd.h"
#include "core/value.h"

namespace interop {

// A table. Accepted beside JSON: True, False, None, single quotes, trailing commas, comments, `name = value`,
// `Name(key=value, ...)` (a table of its arguments; a table without a key is its `distribution`), names and
// calls as values (kept as text), members without their braces. Lines that begin otherwise are passed over.
std::optional<core::Value> parse_python_literal(const std::string& text, const std::string& file_name,
                                                core::Diagnostics& diagnostics);

// JSON and Python write truth as true, True, 1 or "true".
bool is_true(const core::Value& value);

}  // namespace interop
