// What the older standard library of Emscripten lacks: doubles from and to text, as <charconv> has them.
#pragma once

#include <charconv>

namespace web {

// std::from_chars of a double in the format `general`: the longest prefix of [first, last) that is a number.
std::from_chars_result number_from_chars(const char* first, const char* last, double& value);

// std::to_chars of a double without a format: the shortest text that reads back as `value`, fixed where both
// notations are equally long.
std::to_chars_result number_to_chars(char* first, char* last, double value);

}  // namespace web
