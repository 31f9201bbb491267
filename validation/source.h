// Which published groups come from one maker of measurements: what one of them shows, the others show too, so
// they are left out together.
#pragma once

#include <string>
#include <string_view>

namespace validation {

// A group that the table does not know is a source of its own.
std::string source_of(std::string_view group);

}  // namespace validation
