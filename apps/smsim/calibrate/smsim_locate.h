// smsim locate: a measured step beside its prediction, kind by kind.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace apps {

int run_locate_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace apps
