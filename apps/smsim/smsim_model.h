// `smsim model MODEL`: parameters, FLOPs and a table per unit.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace apps {

int run_model_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace apps
