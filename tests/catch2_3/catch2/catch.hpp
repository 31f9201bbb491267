// Catch2 3 under the header name and with the names of Catch2 2.13.
#pragma once

#include <catch2/catch_all.hpp>

#include <concepts>
#include <string>
#include <utility>

using Catch::Approx;

namespace Catch::Matchers {

// Version 3 calls this ContainsSubstring; its own Contains looks for an element of a range.
template <class T>
    requires std::convertible_to<T, std::string>
auto Contains(T&& text) {
    return ContainsSubstring(std::string(std::forward<T>(text)));
}

}  // namespace Catch::Matchers

namespace Catch {
using Matchers::Contains;
using Matchers::EndsWith;
using Matchers::Equals;
using Matchers::StartsWith;
}  // namespace Catch
