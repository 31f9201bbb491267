// Without zlib: packed files are refused with what to do.
#include "core/diagnostics.h"
#include "validation/measured/gzip/gzip.h"

namespace validation {

std::optional<std::string> unpacked(std::string_view, const std::string& file, core::Diagnostics& diagnostics,
                                    std::size_t) {
    diagnostics.error({file, 0, 0}, "", "the file is packed, and this build cannot unpack it",
                      "gunzip it first, or install zlib1g-dev and build again");
    return std::nullopt;
}

}  // namespace validation
