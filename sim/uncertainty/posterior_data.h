// The text of constants_posterior.toml, compiled in (CMake makes the .cpp of it).
#pragma once

#include <string_view>

namespace sim {

std::string_view constants_posterior_text();

}  // namespace sim
