// Every row of a file of published measurements predicted and scored.
#pragma once

#include <string>
#include <vector>

#include "api/options.h"
#include "api/reply.h"

namespace api {

OptionNames validate_options();

// The arguments of `smsim validate`. Where the caller stops it the answer is of the rows so far, says how
// many are left out (`rows_left_out`) and has the outcome no_plan: scores of a part cannot be held against
// those of the file. Throws Stopped where no row is predicted yet.
Reply validate(const std::vector<std::string>& arguments, const Watch& watch);

}  // namespace api
