// `smexec profile`: measures this machine into a hardware profile.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace apps {

int run_smexec_profile(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace apps
