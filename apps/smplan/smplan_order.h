// `smplan order`: the compute order of one plan, searched for its own stage times and kept in the plan.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace apps {

int run_order_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace apps
