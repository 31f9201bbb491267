#include <catch2/catch.hpp>

#include <array>
#include <cmath>
#include <set>

#include "core/errors.h"
#include "core/random.h"

using namespace core;

TEST_CASE("mix64 is SplitMix64") {
    // First outputs of the reference implementation (Vigna, prng.di.unimi.it/splitmix64.c) with state
    // 1234567: it adds the increment, then mixes.
    const std::uint64_t increment = 0x9E3779B97F4A7C15u;
    CHECK(mix64(1234567) == 6457827717110365317u);
    CHECK(mix64(1234567 + increment) == 3203168211198807973u);
    CHECK(mix64(1234567 + 2 * increment) == 9817491932198370423u);
}

TEST_CASE("the same seed gives the same numbers, another seed others") {
    Random a(1), b(1), c(2);
    for (int i = 0; i < 100; ++i) {
        const std::uint64_t value = a.next();
        CHECK(value == b.next());
        CHECK(value != c.next());
    }
}

TEST_CASE("below is uniform and never reaches its bound") {
    Random random(3);
    std::array<int, 7> counts{};
    for (int i = 0; i < 70000; ++i) ++counts[random.below(7)];
    // Standard deviation of one count: sqrt(70000 * 1/7 * 6/7) = 93; five of them are 463.
    for (const int count : counts) CHECK(std::abs(count - 10000) < 463);
    CHECK(random.below(1) == 0);
    CHECK_THROWS_AS(random.below(0), InternalError);
    for (int i = 0; i < 1000; ++i)
        CHECK(random.below((std::uint64_t{1} << 63) + 1) <= (std::uint64_t{1} << 63));
}

TEST_CASE("uniform and normal have their moments") {
    Random random(4);
    const int count = 200000;
    double uniform_sum = 0, sum = 0, squares = 0;
    for (int i = 0; i < count; ++i) {
        const double uniform = random.uniform();
        REQUIRE((uniform >= 0 && uniform < 1));
        uniform_sum += uniform;
        const double normal = random.normal();
        REQUIRE(std::isfinite(normal));
        sum += normal;
        squares += normal * normal;
    }
    // Standard errors: 0.289/sqrt(n) = 0.00065, 1/sqrt(n) = 0.0022, sqrt(2/n) = 0.0032; bounds at five of
    // each.
    CHECK(std::fabs(uniform_sum / count - 0.5) < 0.0033);
    CHECK(std::fabs(sum / count) < 0.0112);
    CHECK(std::fabs(squares / count - 1) < 0.0158);
}
