#include "api/report_page/bundle.h"

// A build without esbuild or D3's modules.
namespace api {

std::string_view report_script() { return {}; }
std::string_view report_style() { return {}; }
std::string_view report_licences() { return {}; }

}  // namespace api
