// `smplan verify FILE`: checks a certificate that `--certificate` wrote.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace apps {

int run_verify_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace apps
