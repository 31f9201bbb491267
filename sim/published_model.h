// Models of published measurements: the vocabulary of the column `model`.
#pragma once

#include <string_view>

#include "core/value.h"
#include "sim/cost/framework.h"
#include "sim/row_reader.h"

namespace sim {

// The [model] table of a row; empty when the simulator does not know the architecture.
core::Value model_table(RowReader& row, const FrameworkTraits& traits);

bool is_convolutional(std::string_view model);

}  // namespace sim
