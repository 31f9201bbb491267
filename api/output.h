// Files beside an answer.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/diagnostics_fwd.h"
#include "core/value.h"

namespace api {

struct OutputFile {
    std::string path, content;
    std::string said = {};  // what it is, for a person: "plan"; empty where the name says it
};

// Before the work whose result goes there: can a file be written at `path`? A diagnostic about the option
// whose value it is.
void check_output(const std::string& option, const std::string& path, core::Diagnostics& diagnostics);

// Do all options that name a file name different ones? The second file would take the place of the first.
void check_outputs_differ(
    const std::vector<std::pair<std::string, std::optional<std::string>>>& options_and_paths,
    core::Diagnostics& diagnostics);

// As JSON, without the line's end.
std::string json_of(const core::Value& value);

// Rows of an answer (an array of tables) as CSV: a column for every key, lists in one cell, parted by
// blanks; what is unknown is empty.
std::string csv_of_rows(const core::Value& rows);

}  // namespace api
