// `smsim compare A B [C...]`: why a scenario is faster than another; `smsim ablate FILE`: what each
// optimisation of a plan is worth.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace apps {

// Exit codes: good; wrong_input. A plan that does not fit is compared all the same, and told.
int run_compare_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

// Exit codes: good; wrong_input; no_plan when the plan as it is does not fit.
int run_ablate_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace apps
