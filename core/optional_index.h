// An index that may be absent, in the four bytes of the index alone (std::optional<std::int32_t> takes
// eight): for records of which there are millions.
#pragma once

#include <cstdint>
#include <optional>

namespace core {

class OptionalIndex {
public:
    constexpr OptionalIndex() = default;
    constexpr OptionalIndex(std::nullopt_t) {}
    // `index` is not negative.
    constexpr OptionalIndex(std::int32_t index) : index_(index) {}

    constexpr bool has_value() const { return index_ != absent; }
    constexpr explicit operator bool() const { return has_value(); }
    // Only of a present one.
    constexpr std::int32_t operator*() const { return index_; }
    constexpr std::int32_t value_or(std::int32_t other) const { return has_value() ? index_ : other; }

    constexpr bool operator==(const OptionalIndex&) const = default;

private:
    static constexpr std::int32_t absent = -1;

    std::int32_t index_ = absent;
};

}  // namespace core
