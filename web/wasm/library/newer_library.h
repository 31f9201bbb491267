// Read before every file of the build for browsers (-include). Emscripten's standard library is libc++ 13:
// these are the parts of C++20 that the rooms use and it lacks. The rooms themselves know nothing of it, so
// that a native build stays what it is.
#pragma once

#include <version>

#ifdef _LIBCPP_VERSION
#include <compare>
#include <string>
#include <system_error>
#include <thread>
#include <type_traits>
#include <vector>

#include "web/wasm/library/number_text.h"

namespace std {

inline from_chars_result from_chars(const char* first, const char* last, double& value) {
    return web::number_from_chars(first, last, value);
}

inline to_chars_result to_chars(char* first, char* last, double value) {
    return web::number_to_chars(first, last, value);
}

#ifndef __cpp_lib_bit_cast
template <class To, class From>
constexpr To bit_cast(const From& from) noexcept {
    return __builtin_bit_cast(To, from);
}
#endif

// A page's worker has one thread: another cannot be started, which is told as by a machine that has no more.
#ifndef __cpp_lib_jthread
class jthread {
public:
    template <class... Arguments>
    explicit jthread(Arguments&&...) {
        throw system_error(make_error_code(errc::resource_unavailable_try_again));
    }
};
#endif

// Lexicographical, as of C++20.
template <class Item, class Allocator>
constexpr auto operator<=>(const vector<Item, Allocator>& left, const vector<Item, Allocator>& right) {
    auto one = left.begin();
    auto other = right.begin();
    for (; one != left.end() && other != right.end(); ++one, ++other)
        if (const auto order = *one <=> *other; order != 0) return order;
    return decltype(*one <=> *other)(left.size() <=> right.size());
}
inline strong_ordering operator<=>(const string& left, const string& right) {
    return left.compare(right) <=> 0;
}

}  // namespace std
#endif
