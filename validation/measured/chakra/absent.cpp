// Without protobuf: execution traces are refused with what to do.
#include "core/diagnostics.h"
#include "validation/measured/chakra/chakra_trace.h"

namespace validation {

std::optional<MeasuredStep> read_chakra_trace(std::string_view, const std::string& file,
                                              core::Diagnostics& diagnostics) {
    diagnostics.error({file, 0, 0}, "", "a Chakra execution trace, which this build cannot read",
                      "install libprotobuf-dev and protobuf-compiler and build again");
    return std::nullopt;
}

}  // namespace validation
