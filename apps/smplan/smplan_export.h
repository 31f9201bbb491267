// `smplan export` and `smplan import`: plans in the words of other tools, and back.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

namespace apps {

int run_export_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);
int run_import_command(const std::vector<std::string>& arguments, std::ostream& out, std::ostream& err);

}  // namespace apps
