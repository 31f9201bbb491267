// The hardware profiles that are known.
#pragma once

#include <cstddef>
#include <string>

#include "api/reply.h"
#include "core/display/text_table.h"

namespace api {

// One profile, by name or file, with the source and date of every figure; an empty name: the list of all, no
// wider than `width`.
Reply hardware(const std::string& name, std::size_t width = core::usual_width);

}  // namespace api
