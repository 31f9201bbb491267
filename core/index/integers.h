// Conversions between kinds of integers: the number of elements of a container, its positions, a narrower
// type, the position of an enumerator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <type_traits>
#include <utility>

namespace core {

// Throws InternalError: a number does not fit the type that was to hold it.
[[noreturn]] void throw_does_not_fit();

// The same number in another integer type. Throws InternalError where that type does not hold it.
template <class To, class From>
constexpr To narrow(From number) {
    static_assert(std::is_integral_v<To> && std::is_integral_v<From>);
    if (!std::in_range<To>(number)) throw_does_not_fit();
    return static_cast<To>(number);
}

// Elements of a container, as ranks, stages, micro-batches and operators are numbered: std::int32_t. Throws
// InternalError where there are more than 2^31 - 1.
template <class Container>
constexpr std::int32_t count_of(const Container& container) {
    return narrow<std::int32_t>(std::size(container));
}

// The numbers first, ..., end - 1 as an integer type or as ids: `for (const auto i : indices(ranks))`.
template <class Index>
class IndexRange {
public:
    class Iterator {
    public:
        using difference_type = std::int32_t;
        using value_type = Index;
        using reference = Index;
        using pointer = const Index*;
        using iterator_category = std::input_iterator_tag;

        constexpr explicit Iterator(std::int32_t at) : at_(at) {}
        constexpr Index operator*() const { return Index(at_); }
        constexpr Iterator& operator++() {
            ++at_;
            return *this;
        }
        constexpr bool operator==(const Iterator&) const = default;

    private:
        std::int32_t at_;
    };

    constexpr IndexRange(std::int32_t first, std::int32_t end)
        : first_(first), end_(end < first ? first : end) {}
    constexpr Iterator begin() const { return Iterator(first_); }
    constexpr Iterator end() const { return Iterator(end_); }

private:
    std::int32_t first_, end_;
};

// The positions of a container's elements when the loop begins: 0, 1, ..., count_of(container) - 1.
template <class Container>
constexpr IndexRange<std::int32_t> indices(const Container& container) {
    return {0, count_of(container)};
}

// The number of an enumerator: where a table has its row.
template <class Enum>
constexpr std::underlying_type_t<Enum> position_of(Enum enumerator) {
    return static_cast<std::underlying_type_t<Enum>>(enumerator);
}

}  // namespace core
