// `smsim scenario.toml`: predict one scenario, or a sweep over it.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace apps {

// Exit codes: good; wrong_input; no_plan when the plan does not fit the devices' memory (the prediction is
// shown all the same); machine_failure.
int run_simulate_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace apps
