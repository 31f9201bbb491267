#include "api/output.h"

#include <optional>

#include <fmt/core.h>

#include "core/diagnostics.h"
#include "core/document.h"

namespace api {

void check_output(const std::string& option, const std::string& path, core::Diagnostics& diagnostics) {
    if (const std::optional<std::string> failure = core::writing_failure(path))
        diagnostics.error(
            {}, option,
            fmt::format("{} {}: cannot be written: {}", option, core::in_quotes(path, 300), *failure),
            "name a file in a folder that you may write");
}

}  // namespace api
