#include <catch2/catch.hpp>

#include <array>
#include <string>
#include <type_traits>
#include <vector>

#include "core/errors.h"
#include "core/index/indexed_vector.h"
#include "core/index/integers.h"
#include "core/units.h"

using namespace core;

namespace {

using CatId = Id<struct CatTag>;
using DogId = Id<struct DogTag>;

template <class Container, class Index>
concept takes = requires(Container container, Index index) { container[index]; };

}  // namespace

TEST_CASE("narrow keeps a number that fits and refuses every other") {
    CHECK(narrow<std::int32_t>(std::size_t{2147483647}) == 2147483647);
    CHECK(narrow<std::uint8_t>(255) == 255);
    CHECK(narrow<std::int8_t>(std::int64_t{-128}) == -128);
    CHECK_THROWS_AS(narrow<std::int32_t>(std::size_t{2147483648}), InternalError);  // 2^31
    CHECK_THROWS_AS(narrow<std::uint8_t>(256), InternalError);
    CHECK_THROWS_AS(narrow<std::uint32_t>(-1), InternalError);
    CHECK_THROWS_AS(narrow<std::size_t>(-1), InternalError);
}

TEST_CASE("count_of is the number of elements as a signed integer") {
    const std::vector<std::string> names{"a", "b", "c"};
    static_assert(std::is_same_v<decltype(count_of(names)), std::int32_t>);
    CHECK(count_of(names) == 3);
    CHECK(count_of(std::vector<int>{}) - 1 == -1);  // unlike the unsigned size
}

TEST_CASE("indices are the positions of a container's elements in order") {
    const std::array<int, 3> numbers{7, 8, 9};
    std::vector<std::int32_t> seen;
    for (const std::int32_t i : indices(numbers)) seen.push_back(i);
    CHECK(seen == std::vector<std::int32_t>{0, 1, 2});
    for (const std::int32_t i : indices(std::vector<int>{})) FAIL("an empty container has position " << i);
    for (const std::int32_t i : IndexRange<std::int32_t>(5, 3)) FAIL("an empty range has " << i);
}

TEST_CASE("indices are those when the loop begins") {
    std::vector<int> numbers{1, 2};
    for (const std::int32_t i : indices(numbers)) numbers.push_back(numbers[i]);
    CHECK(numbers == std::vector<int>{1, 2, 1, 2});
}

TEST_CASE("position_of counts enumerators") {
    enum class Season : std::uint8_t { spring, summer, autumn };
    static_assert(std::is_same_v<decltype(position_of(Season::autumn)), std::uint8_t>);
    CHECK(position_of(Season::autumn) == 2);
}

TEST_CASE("an indexed vector takes its own ids and positions, and no other ids") {
    using Cats = IndexedVector<CatId, std::string>;
    static_assert(takes<Cats, CatId>);
    static_assert(takes<Cats, int>);
    static_assert(!takes<Cats, DogId>);
    static_assert(!takes<std::vector<std::string>, CatId>);

    Cats cats{"Tom", "Felix"};
    CHECK(cats[CatId(1)] == "Felix");
    CHECK(cats.next_id() == CatId(2));
    cats.push_back("Salem");
    cats[CatId(0)] = "Kitty";
    std::string all;
    for (const CatId id : cats.ids()) all += cats[id] + " ";
    CHECK(all == "Kitty Felix Salem ");
}
