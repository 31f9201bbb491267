// Slopes of attention with linear biases.
#pragma once

#include <cmath>
#include <cstdint>

namespace model {

// Press et al., arXiv 2108.12409: a geometric sequence, with every other value of the next one when the heads
// are no power of two.
inline double alibi_slope(std::int64_t heads, std::int64_t head) {
    std::int64_t power = 1;
    while (2 * power <= heads) power *= 2;
    if (head < power) return std::pow(2.0, -8.0 * static_cast<double>(head + 1) / static_cast<double>(power));
    return std::pow(2.0, -4.0 * static_cast<double>(2 * (head - power) + 1) / static_cast<double>(power));
}

}  // namespace model
