// `smsim schedule`: generate, verify, time and draw one pipeline schedule, or one read from a file.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace apps {

int run_schedule_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace apps
