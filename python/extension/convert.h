// Trees of the library as Python's dictionaries, and back.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

#include "core/diagnostics_fwd.h"
#include "core/value.h"

namespace python {

// Tables become dict, arrays list, null None; numbers keep their kind and every bit.
nanobind::object to_python(const core::Value& value);
// A list of dict: severity, file, line, column, key, value, allowed, message, hint; what is unknown is None.
nanobind::object to_python(const core::Diagnostics& diagnostics);

// dict, list, tuple, str, bool, int, float, None, os.PathLike and whatever has __index__ or __float__
// (numpy's scalars). Throws TypeError for anything else, naming it by `path`.
core::Value to_value(nanobind::handle object, const std::string& path);

}  // namespace python
