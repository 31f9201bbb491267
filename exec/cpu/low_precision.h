// Formats of 16 bits as storage; arithmetic is in fp32. bf16 is the upper half of an fp32 number, fp16 the
// binary16 of IEEE 754: both round to nearest, ties to even, and fp16 makes infinities of what rounds to
// 65,520 or more.
#pragma once

#include <cstdint>

#include "core/data_type.h"

namespace exec::cpu {

inline bool is_low(core::DataType type) {
    return type == core::DataType::bf16 || type == core::DataType::fp16;
}
// `type` is one of these two.
void round_to_low(core::DataType type, std::int64_t count, const float* from, std::uint16_t* to);
void widen_low(core::DataType type, std::int64_t count, const std::uint16_t* from, float* to);

}  // namespace exec::cpu
