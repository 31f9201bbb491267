// smexec convert: a checkpoint as another plan would have written it.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace apps {

int run_smexec_convert(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace apps
