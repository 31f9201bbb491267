// `smsim published`: what others published, with our figure beside it.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace apps {

int run_published_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace apps
