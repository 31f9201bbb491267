// A scenario whose plan asks for an order of its own (schedule = "auto").
#pragma once

#include <string>

#include "core/diagnostics_fwd.h"
#include "sim/scenario.h"

namespace api {

// schedule = "auto" becomes the order found, `explanation` says how; false when it cannot be searched.
bool search_order(sim::Scenario& scenario, core::Diagnostics& diagnostics, std::string& explanation);

}  // namespace api
