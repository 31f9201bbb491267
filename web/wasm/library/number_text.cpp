#include "web/wasm/library/number_text.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>

#include <fmt/core.h>

namespace web {

namespace {

const char* after_digits(const char* at, const char* last) {
    while (at != last && *at >= '0' && *at <= '9') ++at;
    return at;
}

// Past "word" in any mixture of cases, or `at`.
const char* after_word(const char* at, const char* last, std::string_view word) {
    const char* next = at;
    for (const char letter : word)
        if (next == last || std::tolower(static_cast<unsigned char>(*next++)) != letter) return at;
    return next;
}

// Past inf, infinity, nan or nan(...), or `at`.
const char* after_no_number(const char* at, const char* last) {
    if (const char* end = after_word(at, last, "infinity"); end != at) return end;
    if (const char* end = after_word(at, last, "inf"); end != at) return end;
    const char* const end = after_word(at, last, "nan");
    if (end == at || end == last || *end != '(') return end;
    const char* next = end + 1;
    while (next != last && (std::isalnum(static_cast<unsigned char>(*next)) || *next == '_')) ++next;
    return next != last && *next == ')' ? next + 1 : end;
}

// Past the digits, the point and the exponent, or `at` where there is no digit.
const char* after_decimal(const char* at, const char* last) {
    const char* const whole = after_digits(at, last);
    const char* end = whole;
    if (end != last && *end == '.') {
        end = after_digits(end + 1, last);
        if (end == whole + 1 && whole == at) return at;
    } else if (whole == at) {
        return at;
    }
    if (end == last || (*end != 'e' && *end != 'E')) return end;
    const char* exponent = end + 1;
    if (exponent != last && (*exponent == '+' || *exponent == '-')) ++exponent;
    const char* const stop = after_digits(exponent, last);
    return stop == exponent ? end : stop;
}

// 0.d1d2d3... times ten to the power of `point`.
struct Digits {
    std::string digits;
    int point = 0;
};

// Of a number above zero. fmt writes the shortest digits that read back as the number.
Digits shortest_digits(double value) {
    const std::string text = fmt::format("{}", value);
    const std::size_t e = text.find('e');
    const std::string mantissa = text.substr(0, e);
    Digits all;
    if (e != std::string::npos) all.point = std::atoi(text.c_str() + e + 1);
    const std::size_t dot = mantissa.find('.');
    all.point += int(std::min(dot, mantissa.size()));
    for (const char c : mantissa)
        if (c != '.') all.digits += c;
    const std::size_t zeros = all.digits.find_first_not_of('0');
    all.digits.erase(0, zeros);
    all.point -= int(zeros);
    all.digits.erase(all.digits.find_last_not_of('0') + 1);
    return all;
}

std::string scientific(const Digits& all) {
    std::string text = all.digits.substr(0, 1);
    if (all.digits.size() > 1) text += '.' + all.digits.substr(1);
    const int exponent = all.point - 1;
    return text + fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
}

std::string fixed(const Digits& all, double value) {
    const int length = int(all.digits.size());
    if (all.point <= 0) return "0." + std::string(std::size_t(-all.point), '0') + all.digits;
    if (all.point < length) {
        const auto whole = std::size_t(all.point);
        return all.digits.substr(0, whole) + '.' + all.digits.substr(whole);
    }
    // The zeros behind the shortest digits of an integer above 2^53 are not its own.
    char exact[std::numeric_limits<double>::max_exponent10 + 3];
    return {exact, std::size_t(std::snprintf(exact, sizeof exact, "%.0f", value))};
}

std::size_t fixed_length(const Digits& all) {
    const int length = int(all.digits.size());
    if (all.point <= 0) return std::size_t(2 - all.point + length);
    return std::size_t(all.point < length ? length + 1 : all.point);
}

std::string text_of(double value) {
    const std::string sign = std::signbit(value) ? "-" : "";
    if (std::isnan(value)) return sign + "nan";
    if (std::isinf(value)) return sign + "inf";
    if (value == 0) return sign + "0";
    const Digits all = shortest_digits(std::abs(value));
    const std::string exponential = scientific(all);
    return sign + (fixed_length(all) <= exponential.size() ? fixed(all, std::abs(value)) : exponential);
}

}  // namespace

std::from_chars_result number_from_chars(const char* first, const char* last, double& value) {
    const char* const begin = first != last && *first == '-' ? first + 1 : first;
    const char* end = after_no_number(begin, last);
    if (end == begin) end = after_decimal(begin, last);
    if (end == begin) return {first, std::errc::invalid_argument};
    const bool is_decimal = *begin == '.' || (*begin >= '0' && *begin <= '9');
    const std::string text(first, end);  // strtod wants an end
    const double read = std::strtod(text.c_str(), nullptr);
    const bool is_zero =
        read == 0 && std::any_of(begin, std::find_if(begin, end, [](char c) { return c == 'e' || c == 'E'; }),
                                 [](char c) { return c >= '1' && c <= '9'; });
    if (is_decimal && (std::isinf(read) || is_zero)) return {end, std::errc::result_out_of_range};
    value = read;
    return {end, std::errc()};
}

std::to_chars_result number_to_chars(char* first, char* last, double value) {
    const std::string text = text_of(value);
    if (std::size_t(last - first) < text.size()) return {last, std::errc::value_too_large};
    return {std::copy(text.begin(), text.end(), first), std::errc()};
}

}  // namespace web
