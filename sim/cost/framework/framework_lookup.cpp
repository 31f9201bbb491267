#include "sim/cost/framework/framework_lookup.h"

#include "sim/cost/framework/framework_catalogue.h"

namespace sim {

FrameworkTraits framework_traits(std::string_view name, const CostConstants& constants) {
    return name.empty() ? FrameworkTraits{} : framework_profile(name).traits(constants);
}

FrameworkMemory framework_memory(std::string_view name, const CostConstants& constants) {
    return name.empty() ? FrameworkMemory{} : framework_profile(name).memory(constants);
}

}  // namespace sim
