// Every row of a file of published measurements predicted and scored.
#pragma once

#include <string>
#include <vector>

#include "api/options.h"
#include "api/reply.h"

namespace api {

OptionNames validate_options();

// The arguments of `smsim validate`. Throws Stopped where the caller ends it: a part has no scores.
Reply validate(const std::vector<std::string>& arguments, const Watch& watch);

}  // namespace api
