// `smsim frameworks [NAME]`: framework profiles with their sources; `--lint` fails on a fact without one.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace apps {

int run_frameworks_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace apps
