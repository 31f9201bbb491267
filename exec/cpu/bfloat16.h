// bf16 as a storage format: the upper half of an fp32 number, rounded to nearest, ties to even. Arithmetic is
// in fp32.
#pragma once

#include <cstdint>

namespace exec::cpu {

void round_to_bfloat16(std::int64_t count, const float* from, std::uint16_t* to);
void widen_bfloat16(std::int64_t count, const std::uint16_t* from, float* to);

}  // namespace exec::cpu
