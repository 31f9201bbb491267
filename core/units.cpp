#include "core/units.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <span>

namespace core {

namespace {

struct Unit {
    std::string_view name;
    double scale;  // in base units
};

constexpr double kibi = 1024.0, mebi = kibi * 1024, gibi = mebi * 1024, tebi = gibi * 1024,
                 pebi = tebi * 1024, exbi = pebi * 1024;

constexpr Unit byte_units[] = {{"B", 1},      {"kB", 1e3},   {"KB", 1e3},   {"MB", 1e6},   {"GB", 1e9},
                               {"TB", 1e12},  {"PB", 1e15},  {"EB", 1e18},  {"KiB", kibi}, {"MiB", mebi},
                               {"GiB", gibi}, {"TiB", tebi}, {"PiB", pebi}, {"EiB", exbi}};
constexpr Unit second_units[] = {{"ns", 1e-9},      {"us", 1e-6}, {"\u00b5s", 1e-6},
                                 {"\u03bcs", 1e-6}, {"ms", 1e-3}, {"s", 1},
                                 {"min", 60},       {"h", 3600},  {"d", 86400}};
constexpr Unit bit_rate_units[] = {{"bps", 1},      {"kbps", 1e3},   {"Kbps", 1e3},   {"Mbps", 1e6},
                                   {"Gbps", 1e9},   {"Tbps", 1e12},  {"b/s", 1},      {"kb/s", 1e3},
                                   {"Mb/s", 1e6},   {"Gb/s", 1e9},   {"Tb/s", 1e12},  {"bit/s", 1},
                                   {"kbit/s", 1e3}, {"Mbit/s", 1e6}, {"Gbit/s", 1e9}, {"Tbit/s", 1e12}};
constexpr Unit flop_rate_prefixes[] = {{"", 1},    {"k", 1e3},  {"K", 1e3},  {"M", 1e6},
                                       {"G", 1e9}, {"T", 1e12}, {"P", 1e15}, {"E", 1e18}};

bool is_blank(char c) { return c == ' ' || c == '\t'; }

struct NumberAndUnit {
    double number;
    std::string_view unit;
};

// "40GiB", "1.5 ms": a decimal number, blanks, a unit; nothing before, between or after.
std::optional<NumberAndUnit> split(std::string_view text) {
    double number = 0;
    const auto [rest, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (failure != std::errc() || !std::isfinite(number)) return std::nullopt;
    std::string_view unit = text.substr(static_cast<std::size_t>(rest - text.data()));
    while (!unit.empty() && is_blank(unit.front())) unit.remove_prefix(1);
    if (unit.empty()) return std::nullopt;
    return NumberAndUnit{number, unit};
}

std::optional<double> scale_of(std::string_view name, std::span<const Unit> units) {
    for (const Unit& unit : units)
        if (unit.name == name) return unit.scale;
    return std::nullopt;
}

template <class Q>
std::optional<Q> finite(double base_units) {
    if (!std::isfinite(base_units)) return std::nullopt;
    return Q(base_units);
}

// Three significant digits without trailing zeros, in the first unit that keeps the number below the next
// unit.
std::string format_in(double value, std::span<const Unit> ascending) {
    if (!std::isfinite(value))
        return (std::isnan(value) ? "nan "
                : value > 0       ? "inf "
                                  : "-inf ") +
               std::string(ascending.front().name);
    const double magnitude = std::fabs(value);
    constexpr double rounding = 1e-12;  // relative, of a product of two doubles
    for (std::size_t i = 0; i < ascending.size(); ++i) {
        const bool is_last = i + 1 == ascending.size();
        const double scaled = magnitude / ascending[i].scale;
        // Three significant digits: 9.995 is the least that rounds to 10.0, 99.95 the least that rounds to
        // 100.
        const int decimals = scaled < 9.995 ? 2 : scaled < 99.95 ? 1 : 0;
        char digits[400];
        std::snprintf(digits, sizeof digits, "%.*f", decimals, scaled);
        double rounded = 0;
        std::from_chars(digits, digits + std::char_traits<char>::length(digits), rounded);
        if (!is_last && rounded * ascending[i].scale >= ascending[i + 1].scale * (1 - rounding)) continue;
        std::string text = digits;
        if (decimals > 0) {
            while (text.back() == '0') text.pop_back();
            if (text.back() == '.') text.pop_back();
        }
        // Below the smallest unit two decimals may round to nothing: then say the number itself.
        if (text == "0" && magnitude > 0) {
            std::snprintf(digits, sizeof digits, "%.3g", scaled);
            text = digits;
        }
        return (value < 0 ? "-" : "") + text + " " + std::string(ascending[i].name);
    }
    return {};
}

}  // namespace

std::optional<Bytes> parse_bytes(std::string_view text) {
    const auto parts = split(text);
    if (!parts) return std::nullopt;
    const auto scale = scale_of(parts->unit, byte_units);
    if (!scale) return std::nullopt;
    return finite<Bytes>(parts->number * *scale);
}

std::optional<Seconds> parse_seconds(std::string_view text) {
    const auto parts = split(text);
    if (!parts) return std::nullopt;
    const auto scale = scale_of(parts->unit, second_units);
    if (!scale) return std::nullopt;
    // Decimal fractions of a second are divided, not multiplied by an inexact 1e-6: 8us is then the same
    // number as 8e-6.
    return finite<Seconds>(*scale < 1 ? parts->number / std::round(1 / *scale) : parts->number * *scale);
}

std::optional<BytesPerSecond> parse_bytes_per_second(std::string_view text) {
    const auto parts = split(text);
    if (!parts) return std::nullopt;
    if (const auto bits = scale_of(parts->unit, bit_rate_units))
        return finite<BytesPerSecond>(parts->number * *bits / 8);
    if (!parts->unit.ends_with("/s")) return std::nullopt;
    const auto scale = scale_of(parts->unit.substr(0, parts->unit.size() - 2), byte_units);
    if (!scale) return std::nullopt;
    return finite<BytesPerSecond>(parts->number * *scale);
}

std::optional<FlopsPerSecond> parse_flops_per_second(std::string_view text) {
    const auto parts = split(text);
    if (!parts) return std::nullopt;
    for (const std::string_view word : {"FLOP/s", "FLOPS"}) {
        if (!parts->unit.ends_with(word)) continue;
        const auto scale =
            scale_of(parts->unit.substr(0, parts->unit.size() - word.size()), flop_rate_prefixes);
        if (scale) return finite<FlopsPerSecond>(parts->number * *scale);
    }
    return std::nullopt;
}

std::string format(Bytes quantity) {
    static constexpr Unit units[] = {{"B", 1},      {"KiB", kibi}, {"MiB", mebi},
                                     {"GiB", gibi}, {"TiB", tebi}, {"PiB", pebi}};
    return format_in(quantity.value, units);
}

std::string format(Seconds quantity) {
    // What is left of a difference of seconds: nothing here takes less than a picosecond.
    constexpr double least = 1e-12;
    if (std::fabs(quantity.value) < least) return "0 s";
    static constexpr Unit units[] = {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1},
                                     {"min", 60},  {"h", 3600},  {"d", 86400}};
    return format_in(quantity.value, units);
}

std::string format(BytesPerSecond quantity) {
    static constexpr Unit units[] = {{"B/s", 1},    {"kB/s", 1e3},  {"MB/s", 1e6},
                                     {"GB/s", 1e9}, {"TB/s", 1e12}, {"PB/s", 1e15}};
    return format_in(quantity.value, units);
}

std::string format(FlopsPerSecond quantity) {
    static constexpr Unit units[] = {{"FLOP/s", 1},     {"kFLOP/s", 1e3},  {"MFLOP/s", 1e6}, {"GFLOP/s", 1e9},
                                     {"TFLOP/s", 1e12}, {"PFLOP/s", 1e15}, {"EFLOP/s", 1e18}};
    return format_in(quantity.value, units);
}

}  // namespace core
