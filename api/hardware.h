// The hardware profiles that are known.
#pragma once

#include <string>

#include "api/reply.h"

namespace api {

// One profile, by name or file, with the source and date of every figure; an empty name: the list of all.
Reply hardware(const std::string& name);

}  // namespace api
