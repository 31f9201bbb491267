// Any graph placed on devices, with a proof.
#pragma once

#include <string>
#include <vector>

#include "api/reply.h"

namespace api {

// The arguments of `smplan partition`. no_plan where there is no placement, with the reason.
// A stopped search answers with its best so far, and throws Stopped where it has none.
Reply partition(const std::vector<std::string>& arguments, const Watch& watch);

}  // namespace api
