// `smplan partition`: places a costed graph on devices and says how far from the best possible the answer is.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace apps {

int run_partition_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace apps
