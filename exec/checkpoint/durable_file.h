// Files that are there as a whole or not at all, also after a crash.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace exec {

// What is written: parts that lie behind one another in the file.
using FileParts = std::span<const std::span<const std::byte>>;

// Replaces FOLDER/NAME: written beside it as NAME.writing, synchronised, renamed, the folder synchronised.
// Throws core::MachineError with path and the system's words; beyond RLIMIT_FSIZE too, which is no signal
// here.
void write_durably(const std::string& folder, const std::string& name, FileParts parts);

// Makes what was renamed or created in a folder last. Throws core::MachineError.
void synchronize_directory(const std::string& path);

// core::MachineError: "WHAT PATH: " and the system's words for errno.
[[noreturn]] void throw_system_error(const std::string& what, const std::string& path);

}  // namespace exec
