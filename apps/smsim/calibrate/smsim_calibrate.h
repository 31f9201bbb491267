// `smsim calibrate RUNS.csv [--clusters clusters.csv] --out FILE.toml`: constants of one installation from
// its own runs.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace apps {

int run_calibrate_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace apps
