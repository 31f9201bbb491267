// What a report page is drawn by: web/ as CMake bundled it. All empty where this build has none.
#pragma once

#include <string_view>

namespace api {

std::string_view report_script();
std::string_view report_style();
std::string_view report_licences();  // of what is in the script

}  // namespace api
