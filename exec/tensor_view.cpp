#include "exec/tensor_view.h"

#include <fmt/core.h>

#include "core/errors.h"

namespace exec {

void throw_other_elements(core::DataType type) {
    throw core::InternalError(
        fmt::format("an array of {} is read as one of other elements", core::name_of(type)));
}

}  // namespace exec
