// Seeded random numbers that are the same on every machine and compiler (std:: distributions are not).
#pragma once

#include <cstdint>

namespace core {

// Counter-free 64-bit mixing function (SplitMix64, Steele, Lea and Flood, OOPSLA 2014): one value per key, in
// any order.
std::uint64_t mix64(std::uint64_t key);

// xoshiro256** 1.0 (Blackman and Vigna, 2018), seeded through SplitMix64.
class Random {
public:
    explicit Random(std::uint64_t seed);
    std::uint64_t next();
    std::uint64_t below(std::uint64_t bound);  // uniform in [0, bound), bound > 0, unbiased
    double uniform();                          // [0, 1) with 53 bits
    double normal();                           // mean 0, deviation 1 (Box-Muller)

private:
    std::uint64_t state_[4];
};

}  // namespace core
