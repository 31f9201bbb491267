// The facts of the profile that a plan names, its constants at given values. Names are checked before, by
// check_framework of framework_catalogue.h; an unknown one is an InternalError here.
#pragma once

#include <string_view>

#include "sim/cost/constants.h"
#include "sim/cost/framework/framework.h"
#include "sim/cost/framework/framework_memory.h"

namespace sim {

// An empty name is no framework, which adds nothing.
FrameworkTraits framework_traits(std::string_view name, const CostConstants& constants = {});
FrameworkMemory framework_memory(std::string_view name, const CostConstants& constants = {});

}  // namespace sim
