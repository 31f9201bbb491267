// Numbers between the host's fp32 and the precision of an array on the device.
#pragma once

#include <span>

#include "core/data_type.h"

namespace exec::cuda {

void to_precision(core::DataType type, std::span<const float> values, void* to);  // to nearest, ties to even
void from_precision(core::DataType type, const void* from, std::span<float> values);

}  // namespace exec::cuda
