// `smplan --target ...`: the best plan to train a model on instances one can rent, with the account of what
// was looked at.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace apps {

extern const char* const plan_help;

int run_plan_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace apps
