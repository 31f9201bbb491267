// `smsim hardware [NAME]`: hardware profiles with their sources; `--lint` fails on a number without one.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace apps {

int run_hardware_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace apps
