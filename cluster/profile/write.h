// An instance type back to the text of a profile (`smexec profile` writes one). load_instance(path) of the
// text gives the same instance.
#pragma once

#include <string>

#include "cluster/topology.h"
#include "core/value.h"

namespace cluster {

// The device is written in place, never as a reference to a device file. Figures keep their sources; `notes`
// that repeat an assumed figure are not written, since reading makes them again. A section without provenance
// gets none: lint_profile will say so.
core::Value instance_to_value(const InstanceType& instance);
std::string instance_to_toml(const InstanceType& instance);

}  // namespace cluster
