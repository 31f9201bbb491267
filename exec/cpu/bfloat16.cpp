#include "exec/cpu/bfloat16.h"

#include <bit>

namespace exec::cpu {

namespace {

constexpr std::uint32_t dropped_bits = 16;  // of the fraction of an fp32 number
constexpr std::uint32_t below_half = (1u << (dropped_bits - 1)) - 1;
constexpr std::uint32_t magnitude = 0x7FFFFFFFu, infinity = 0x7F800000u;  // of fp32
constexpr std::uint32_t quiet_bit = 0x40u;                                // of bf16

}  // namespace

void round_to_bfloat16(std::int64_t count, const float* from, std::uint16_t* to) {
    for (std::int64_t i = 0; i < count; ++i) {
        const auto bits = std::bit_cast<std::uint32_t>(from[i]);
        // The addend is half of the last place kept, less one when the last bit kept is even: ties go to
        // even. A NaN gets its quiet bit set, since cutting its lower half alone could make it an infinity.
        const std::uint32_t rounded = (bits + below_half + ((bits >> dropped_bits) & 1u)) >> dropped_bits,
                            quiet = (bits >> dropped_bits) | quiet_bit;
        to[i] = static_cast<std::uint16_t>((bits & magnitude) > infinity ? quiet : rounded);
    }
}

void widen_bfloat16(std::int64_t count, const std::uint16_t* from, float* to) {
    for (std::int64_t i = 0; i < count; ++i)
        to[i] = std::bit_cast<float>(static_cast<std::uint32_t>(from[i]) << dropped_bits);
}

}  // namespace exec::cpu
