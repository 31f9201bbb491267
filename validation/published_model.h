// Models of published measurements: the vocabulary of the column `model`.
#pragma once

#include <string_view>

#include "core/value.h"
#include "sim/cost/framework/framework.h"
#include "validation/row_reader.h"

namespace validation {

// The [model] table of a row; empty when the simulator does not know the architecture.
core::Value model_table(RowReader& row, const sim::FrameworkTraits& traits);

bool is_convolutional(std::string_view model);

}  // namespace validation
