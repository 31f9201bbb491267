// The hash that a saved decision knows its graph by: the same for the same parts in the same order, on every
// machine.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace partition {

class GraphHash {
public:
    void add(std::uint64_t value);
    void add_number(double value);
    void add_letters(std::string_view text);
    std::string text() const;  // 16 hexadecimal digits

private:
    std::uint64_t state_ = 0;
};

}  // namespace partition
