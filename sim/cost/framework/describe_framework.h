// Words for `smsim frameworks [NAME]`: the application only prints them.
#pragma once

#include <string>

#include "core/value.h"
#include "sim/cost/framework/framework_catalogue.h"

namespace sim {

// One line a profile: name, what it extends, versions.
std::string describe_list(const FrameworkCatalogue& catalogue);
core::Value list_to_value(const FrameworkCatalogue& catalogue);
// Every fact with its value, its source and date or its constant, and the profile that states it; what no
// profile says stands at the end.
std::string describe(const FrameworkProfile& profile);
core::Value describe_to_value(const FrameworkProfile& profile);

}  // namespace sim
