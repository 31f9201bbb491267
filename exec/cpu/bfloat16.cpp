#include "exec/cpu/bfloat16.h"

#include <bit>

namespace exec::cpu {

void round_to_bfloat16(std::int64_t count, const float* from, std::uint16_t* to) {
    for (std::int64_t i = 0; i < count; ++i) {
        const auto bits = std::bit_cast<std::uint32_t>(from[i]);
        // Half of the last place kept, less one where that is even; a quiet bit keeps what is no number from
        // becoming infinite.
        const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16,
                            quiet = (bits >> 16) | 0x40u;
        to[i] = static_cast<std::uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded);
    }
}

void widen_bfloat16(std::int64_t count, const std::uint16_t* from, float* to) {
    for (std::int64_t i = 0; i < count; ++i)
        to[i] = std::bit_cast<float>(static_cast<std::uint32_t>(from[i]) << 16);
}

}  // namespace exec::cpu
