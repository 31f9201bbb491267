// `smsim campaign FILE`: many jobs on one pool of instances.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace apps {

// Exit codes: good; wrong_input; no_plan when the plan of jobs without a given duration does not fit into
// memory; machine_failure.
int run_campaign_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace apps
