// fp8 as products use it (arXiv 2209.05433): e4m3, sign, four bits of exponent (bias 7), three of fraction,
// no infinities, one pattern that is no number; e5m2, a narrow fp16: five bits of exponent (bias 15), two of
// fraction. Forward operands are e4m3, gradients of outputs e5m2.
//
// A tensor has one scale: a power of two, so that scaling rounds nothing and every machine gets the same
// bits; of them the largest by which no element grows beyond the format's largest number. Where that is not
// to be had (all zero, or something infinite or no number among the elements) the scale is 1, as Transformer
// Engine has it (recipe_common.cuh of 2.x, compute_scale_from_amax). Numbers too large become the largest,
// infinities too; what is no number stays so.
#pragma once

#include <bit>
#include <cstdint>

namespace exec {

enum class Float8 : std::uint8_t { e4m3, e5m2 };

constexpr int fraction_bits(Float8 format) { return format == Float8::e4m3 ? 3 : 2; }
constexpr int exponent_bias(Float8 format) { return format == Float8::e4m3 ? 7 : 15; }
constexpr float largest(Float8 format) { return format == Float8::e4m3 ? 448.0f : 57344.0f; }

// The scale of a tensor whose largest magnitude is this. Both formats' largest numbers are 1.75 times a power
// of two, 2^8 and 2^15.
constexpr float float8_scale(Float8 format, float magnitude) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(magnitude) & 0x7FFFFFFFu;
    if (bits == 0 || bits >= 0x7F800000u) return 1.0f;
    const int exponent = static_cast<int>(bits >> 23) - 127;
    const bool is_beyond = (bits & 0x7FFFFFu) > 0x600000u;  // more than 1.75 times its power of two
    int scale = (format == Float8::e4m3 ? 8 : 15) - exponent - (is_beyond ? 1 : 0);
    constexpr int most = 126;  // so that 1 / scale is a normal number too: of fp32's subnormal numbers the
                               // smallest stay smaller than they could be
    if (scale > most) scale = most;
    return std::bit_cast<float>(static_cast<std::uint32_t>(scale + 127) << 23);
}

// To the nearest, ties to even.
constexpr std::uint8_t to_float8(Float8 format, float value) {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
    const auto sign = static_cast<std::uint8_t>(bits >> 24 & 0x80u);
    const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
    const int fraction = fraction_bits(format), bias = exponent_bias(format);
    const std::uint32_t most = format == Float8::e4m3 ? 0x7Eu : 0x7Bu;
    if (magnitude > 0x7F800000u) return static_cast<std::uint8_t>(sign | 0x7Fu);
    if (magnitude == 0x7F800000u) return static_cast<std::uint8_t>(sign | most);
    int exponent = static_cast<int>(magnitude >> 23) - 127;
    const std::uint32_t digits =
        (magnitude & 0x7FFFFFu) |
        (exponent > -127 ? 0x800000u : 0u);  // 24 bits; fp32's subnormal numbers are far below half of ours
    int dropped = 23 - fraction;
    if (exponent < 1 - bias) {  // subnormal: fewer digits stay
        dropped += 1 - bias - exponent;
        exponent = 1 - bias;
    }
    if (dropped > 24) return sign;
    const std::uint32_t rounded = (digits + (1u << (dropped - 1)) - 1u + (digits >> dropped & 1u)) >> dropped;
    const std::int64_t code = (static_cast<std::int64_t>(exponent + bias - 1) << fraction) + rounded;
    return static_cast<std::uint8_t>(
        sign | (code > static_cast<std::int64_t>(most) ? most : static_cast<std::uint32_t>(code)));
}

constexpr float from_float8(Float8 format, std::uint8_t code) {
    const int fraction = fraction_bits(format), bias = exponent_bias(format);
    const std::uint32_t sign = (code & 0x80u) << 24, magnitude = code & 0x7Fu;
    if (format == Float8::e4m3 ? magnitude == 0x7Fu : magnitude > 0x7Cu)
        return std::bit_cast<float>(sign | 0x7FC00000u);
    if (format == Float8::e5m2 && magnitude == 0x7Cu) return std::bit_cast<float>(sign | 0x7F800000u);
    const std::uint32_t exponent = magnitude >> fraction, digits = magnitude & ((1u << fraction) - 1u);
    if (exponent > 0)
        return std::bit_cast<float>(sign | (exponent + 127u - bias) << 23 | digits << (23 - fraction));
    // digits * 2^(1 - bias - fraction), exactly.
    const float unit = std::bit_cast<float>(static_cast<std::uint32_t>(128 - bias - fraction) << 23);
    const float value = digits * unit;
    return sign ? -value : value;
}

// What a product makes of the elements of one tensor: each rounded under the tensor's scale.
void round_to_float8(Float8 format, std::int64_t count, float* values);

}  // namespace exec
