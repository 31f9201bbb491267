// Any graph placed on devices, with a proof.
#pragma once

#include <string>
#include <vector>

#include "api/reply.h"

namespace api {

// The arguments of `smplan partition`. no_plan where there is no placement, with the reason.
// Throws Stopped where the caller ends it, which it is asked whenever a bound moves.
Reply partition(const std::vector<std::string>& arguments, const Watch& watch);

}  // namespace api
