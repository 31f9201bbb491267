// `smexec PLAN.toml`: runs a plan on this machine and compares it with its prediction.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace apps {

const char* smexec_help();
int run_smexec(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace apps
