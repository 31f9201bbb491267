// Physical quantities as types: `Bytes / BytesPerSecond` is `Seconds`; `Bytes + Seconds` does not compile.
// Inside the program every quantity is in its SI base (bytes, seconds, FLOPs); text forms carry the unit
// ("40GiB", "100Gbps", "8us").
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace core {

// A quantity with integer exponents of byte, second, floating-point operation and US dollar.
template <int ByteExponent, int SecondExponent, int FlopExponent, int DollarExponent = 0>
struct Quantity {
    double value = 0;  // in base units

    constexpr Quantity() = default;
    constexpr explicit Quantity(double base_units) : value(base_units) {}

    constexpr auto operator<=>(const Quantity&) const = default;
    constexpr Quantity operator-() const { return Quantity(-value); }
    constexpr Quantity& operator+=(Quantity other) {
        value += other.value;
        return *this;
    }
    constexpr Quantity& operator-=(Quantity other) {
        value -= other.value;
        return *this;
    }
    constexpr Quantity& operator*=(double factor) {
        value *= factor;
        return *this;
    }
    constexpr Quantity& operator/=(double divisor) {
        value /= divisor;
        return *this;
    }
    friend constexpr Quantity operator+(Quantity a, Quantity b) { return Quantity(a.value + b.value); }
    friend constexpr Quantity operator-(Quantity a, Quantity b) { return Quantity(a.value - b.value); }
    friend constexpr Quantity operator*(Quantity a, double b) { return Quantity(a.value * b); }
    friend constexpr Quantity operator*(double a, Quantity b) { return Quantity(a * b.value); }
    friend constexpr Quantity operator/(Quantity a, double b) { return Quantity(a.value / b); }
};

// Products and ratios of quantities add and subtract exponents; a ratio of equal dimensions is a plain
// number.
template <int B1, int S1, int F1, int D1, int B2, int S2, int F2, int D2>
constexpr auto operator*(Quantity<B1, S1, F1, D1> a, Quantity<B2, S2, F2, D2> b) {
    if constexpr (B1 + B2 == 0 && S1 + S2 == 0 && F1 + F2 == 0 && D1 + D2 == 0) return a.value * b.value;
    else return Quantity<B1 + B2, S1 + S2, F1 + F2, D1 + D2>(a.value * b.value);
}
template <int B1, int S1, int F1, int D1, int B2, int S2, int F2, int D2>
constexpr auto operator/(Quantity<B1, S1, F1, D1> a, Quantity<B2, S2, F2, D2> b) {
    if constexpr (B1 == B2 && S1 == S2 && F1 == F2 && D1 == D2) return a.value / b.value;
    else return Quantity<B1 - B2, S1 - S2, F1 - F2, D1 - D2>(a.value / b.value);
}

using Bytes = Quantity<1, 0, 0>;
using Seconds = Quantity<0, 1, 0>;
using Flops = Quantity<0, 0, 1>;  // a count of floating-point operations
using BytesPerSecond = Quantity<1, -1, 0>;
using FlopsPerSecond = Quantity<0, -1, 1>;
using Dollars = Quantity<0, 0, 0, 1>;
using DollarsPerSecond = Quantity<0, -1, 0, 1>;

constexpr Bytes bytes(double n) { return Bytes(n); }
constexpr Bytes kibibytes(double n) { return Bytes(n * 1024.0); }
constexpr Bytes mebibytes(double n) { return Bytes(n * 1048576.0); }
constexpr Bytes gibibytes(double n) { return Bytes(n * 1073741824.0); }
constexpr Bytes gigabytes(double n) { return Bytes(n * 1e9); }
constexpr Seconds seconds(double n) { return Seconds(n); }
constexpr Seconds milliseconds(double n) { return Seconds(n * 1e-3); }
constexpr Seconds microseconds(double n) { return Seconds(n * 1e-6); }
constexpr Seconds hours(double n) { return Seconds(n * 3600.0); }
constexpr Flops flops(double n) { return Flops(n); }
constexpr FlopsPerSecond teraflops_per_second(double n) { return FlopsPerSecond(n * 1e12); }
constexpr BytesPerSecond gigabytes_per_second(double n) { return BytesPerSecond(n * 1e9); }
constexpr BytesPerSecond gigabits_per_second(double n) { return BytesPerSecond(n * 1e9 / 8.0); }
constexpr DollarsPerSecond dollars_per_hour(double n) { return DollarsPerSecond(n / 3600.0); }

// A size in memory: the nearest whole number of bytes.
constexpr std::size_t whole_bytes(Bytes b) { return static_cast<std::size_t>(b.value + 0.5); }

constexpr double to_gibibytes(Bytes b) { return b.value / 1073741824.0; }
constexpr double to_gigabytes_per_second(BytesPerSecond b) { return b.value / 1e9; }
constexpr double to_teraflops_per_second(FlopsPerSecond f) { return f.value / 1e12; }
constexpr double to_dollars_per_hour(DollarsPerSecond d) { return d.value * 3600.0; }

// Reads "40GiB", "16 GB", "512B": decimal and binary prefixes are different words. Nothing for any other
// text, NaN or infinity.
std::optional<Bytes> parse_bytes(std::string_view text);
// Reads "8us", "1.5 ms", "2s", "3min", "4h".
std::optional<Seconds> parse_seconds(std::string_view text);
// Reads bit rates "100Gbps", "25 Mbps" and byte rates "300GB/s", "12GiB/s".
std::optional<BytesPerSecond> parse_bytes_per_second(std::string_view text);
// Reads "312TFLOP/s", "19.5 TFLOPS", "90GFLOP/s".
std::optional<FlopsPerSecond> parse_flops_per_second(std::string_view text);

// Shortest text with three significant digits and a unit a person would choose: "37.2 GiB", "1.54 ms", "12.5
// GB/s".
std::string format(Bytes quantity);
std::string format(Seconds quantity);
std::string format(BytesPerSecond quantity);
std::string format(FlopsPerSecond quantity);

// A number that cannot be mixed up with another kind of number: `Id<struct RankTag>`.
template <class Tag>
struct Id {
    std::int32_t index = -1;

    constexpr Id() = default;
    constexpr explicit Id(std::int32_t i) : index(i) {}
    constexpr bool is_valid() const { return index >= 0; }
    constexpr auto operator<=>(const Id&) const = default;
};

}  // namespace core
