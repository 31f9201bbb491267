// Text to Value and back. toml++ and nlohmann-json stay in the .cpp.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/diagnostics_fwd.h"
#include "core/value.h"

namespace core {

// Files above this size are refused before they are parsed: no format of ours comes near it.
inline constexpr std::size_t largest_document_bytes = 8u << 20;
// Nesting beyond this depth is refused (a parser must not overflow its stack on hostile input).
inline constexpr int deepest_nesting = 64;

// Whole file as bytes; a missing, unreadable or oversized file is a diagnostic. `key` names the input that
// pointed at the file.
std::optional<std::string> read_file(const std::string& path, Diagnostics& diagnostics,
                                     const SourceLocation& referrer = {}, const std::string& key = {},
                                     std::size_t largest_bytes = largest_document_bytes);

std::optional<Value> parse_toml(std::string_view text, const std::string& file_name,
                                Diagnostics& diagnostics);
std::optional<Value> parse_json(std::string_view text, const std::string& file_name,
                                Diagnostics& diagnostics);
// By extension: .json is JSON, everything else TOML.
std::optional<Value> load_document(const std::string& path, Diagnostics& diagnostics,
                                   const SourceLocation& referrer = {}, const std::string& key = {});

// Numbers are written with the fewest digits that read back to the same value; NaN and infinity become null
// in JSON.
std::string to_json(const Value& value, int indent = 2);
std::string to_toml(const Value& table);

// The errors document of the command-line contract:
// {"errors":[{"file","line","column","key","message","hint"}]}.
Value to_value(const Diagnostics& diagnostics);

// Writes through a temporary file and a rename, so a reader never sees half a file. Links are followed; a
// device or a pipe is written to. Throws MachineError.
void write_file_atomically(const std::string& path, std::string_view content);
// Why write_file_atomically would fail, asked before the work whose result goes there. Nothing is created; a
// disk may still be full later.
std::optional<std::string> writing_failure(const std::string& path);

}  // namespace core
