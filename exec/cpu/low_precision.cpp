#include "exec/cpu/low_precision.h"

#include <bit>

#include "core/errors.h"

namespace exec::cpu {

namespace {

constexpr std::uint32_t dropped_bits = 16;  // of the fraction of an fp32 number
constexpr std::uint32_t below_half = (1u << (dropped_bits - 1)) - 1;
constexpr std::uint32_t magnitude = 0x7FFFFFFFu, infinity = 0x7F800000u;  // of fp32
constexpr std::uint32_t quiet_bit = 0x40u;                                // of bf16

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

// binary16: 1 sign, 5 exponent and 10 fraction bits, exponents -14 to 15.
constexpr int dropped_of_half = 13;  // of the fraction of an fp32 number
constexpr std::uint32_t infinity_of_half = 0x7C00u, quiet_bit_of_half = 0x0200u, sign_of_half = 0x8000u;
constexpr std::uint32_t exponent_shift = (127u - 15u) << 23;  // between the two biases, in fp32's place
constexpr std::uint32_t least_overflow = 0x477FF000u;         // 65,520
constexpr std::uint32_t least_normal = 0x38800000u;           // 2^-14
constexpr float subnormal_magic = 0.5f;  // its last place is 2^-24, the least subnormal: adding rounds to it

std::uint16_t half_of(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t size = bits & magnitude, sign = (bits >> 16) & sign_of_half;
    std::uint32_t half = 0;
    if (size > infinity) half = infinity_of_half | quiet_bit_of_half | ((size >> dropped_of_half) & 0x3FFu);
    else if (size >= least_overflow) half = infinity_of_half;
    else if (size >= least_normal)
        half = (size - exponent_shift + ((1u << (dropped_of_half - 1)) - 1) +
                ((size >> dropped_of_half) & 1u)) >>
               dropped_of_half;
    else
        half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) + subnormal_magic) -
               std::bit_cast<std::uint32_t>(subnormal_magic);
    return static_cast<std::uint16_t>(half | sign);
}

float float_of(std::uint16_t half) {
    const std::uint32_t sign = (half & sign_of_half) << 16, size = half & ~sign_of_half;
    if (size >= infinity_of_half)
        return std::bit_cast<float>(sign | infinity | (size & 0x3FFu) << dropped_of_half);
    // A product by 2^112 moves the exponent, and makes normal numbers of subnormal ones.
    const float moved = std::bit_cast<float>(size << dropped_of_half) * 0x1.0p112f;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(moved));
}

}  // namespace

void round_to_low(core::DataType type, std::int64_t count, const float* from, std::uint16_t* to) {
    core::require(is_low(type), "a format of 16 bits is rounded to");
    if (type == core::DataType::bf16) return round_to_bfloat16(count, from, to);
    for (std::int64_t i = 0; i < count; ++i) to[i] = half_of(from[i]);
}

void widen_low(core::DataType type, std::int64_t count, const std::uint16_t* from, float* to) {
    core::require(is_low(type), "a format of 16 bits is widened");
    if (type == core::DataType::bf16) return widen_bfloat16(count, from, to);
    for (std::int64_t i = 0; i < count; ++i) to[i] = float_of(from[i]);
}

}  // namespace exec::cpu
