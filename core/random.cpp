#include "core/random.h"

#include <bit>
#include <cmath>
#include <numbers>

#include "core/diagnostics.h"

namespace core {

std::uint64_t mix64(std::uint64_t key) {
    key += 0x9E3779B97F4A7C15u;
    key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9u;
    key = (key ^ (key >> 27)) * 0x94D049BB133111EBu;
    return key ^ (key >> 31);
}

Random::Random(std::uint64_t seed) {
    for (std::uint64_t i = 0; i < 4; ++i)
        state_[i] =
            mix64(seed + i * 0x9E3779B97F4A7C15u);  // four consecutive SplitMix64 outputs, never all zero
}

std::uint64_t Random::next() {
    const std::uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
    const std::uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = std::rotl(state_[3], 45);
    return result;
}

std::uint64_t Random::below(std::uint64_t bound) {
    require(bound > 0, "Random::below needs a positive bound");
    // 2^64 mod bound values at the low end would make small remainders likelier: draw again.
    const std::uint64_t refused = (0 - bound) % bound;
    std::uint64_t value = next();
    while (value < refused) value = next();
    return value % bound;
}

double Random::uniform() { return (next() >> 11) * 0x1.0p-53; }

double Random::normal() {
    const double radius_draw = 1.0 - uniform();  // in (0, 1], so that the logarithm is finite
    const double angle = 2.0 * std::numbers::pi * uniform();
    return std::sqrt(-2.0 * std::log(radius_draw)) * std::cos(angle);
}

}  // namespace core
