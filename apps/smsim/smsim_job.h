// `smsim job FILE`: a whole training, with what goes wrong on the way and what it costs.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace apps {

// Exit codes: good; wrong_input; no_plan when the plan does not fit the devices' memory or the job would be
// interrupted for ever; machine_failure.
int run_job_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace apps
