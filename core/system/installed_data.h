// Where an installed program's data lies: relative to the program, so that a folder can be moved as a whole.
#pragma once

#include <string>
#include <vector>

namespace core {

// Folders that may hold `folder` ("hardware_profiles") of an installation, best first; they need not exist:
// PREFIX/share/smsim of the program PREFIX/bin/smsim, and share/smsim beside a shared object (the Python
// package's extension) that holds this code.
std::vector<std::string> installed_data(const std::string& folder);

}  // namespace core
