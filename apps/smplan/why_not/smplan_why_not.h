// `smplan why-not PLAN.toml`: a plan against the best one of the same model, cluster and batch.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace apps {

int run_why_not_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace apps
