// `smsim validate FILE.csv --clusters clusters.csv [--sweeps sweeps.csv]`: predictions against published
// measurements.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace apps {

int run_validate_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace apps
