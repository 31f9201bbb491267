#include <catch2/catch.hpp>

#include <concepts>
#include <cstdint>
#include <vector>

#include "core/errors.h"
#include "exec/tensor_view.h"

using namespace exec;
using core::DataType;

TEST_CASE("a view gives its elements as what they are, and as nothing else") {
    std::vector<float> numbers(6);
    std::vector<std::int64_t> ids(3);
    std::vector<std::uint16_t> rounded(4);
    const TensorView matrix(numbers.data(), DataType::fp32, TensorShape{2, 3});
    const TensorView tokens(ids.data(), DataType::int64, 3), low(rounded.data(), DataType::bf16, 4);
    CHECK(matrix.floats() == numbers.data());
    CHECK(tokens.integers() == ids.data());
    CHECK(low.as<std::uint16_t>() == rounded.data());
    CHECK_THROWS_AS(matrix.integers(), core::InternalError);
    CHECK_THROWS_AS(tokens.floats(), core::InternalError);
    CHECK_THROWS_AS(low.floats(), core::InternalError);
    CHECK_THROWS_AS(low.as<std::uint8_t>(), core::InternalError);
}

TEST_CASE("a view of no array is false and has null elements of every type") {
    const TensorView nothing;
    CHECK_FALSE(bool(nothing));
    CHECK(nothing.floats() == nullptr);
    CHECK(nothing.integers() == nullptr);
    CHECK(nothing.elements() == 0);
}

TEST_CASE("part of a view is a flat array that begins at an element") {
    std::vector<std::uint16_t> numbers(12);
    const TensorView all(numbers.data(), DataType::bf16, TensorShape{3, 4});
    CHECK(all.elements() == 12);
    CHECK(all.bytes() == 24);  // two bytes each
    const TensorView part = all.part(4, 6);
    CHECK(part.as<std::uint16_t>() == numbers.data() + 4);
    CHECK(part.shape() == TensorShape{1, 6});
    CHECK(part.bytes() == 12);
}

TEST_CASE("what may be written may be read, and not the other way round") {
    static_assert(std::convertible_to<TensorView, ConstTensorView>);
    static_assert(!std::convertible_to<ConstTensorView, TensorView>);
    std::vector<float> numbers{1, 2};
    const ConstTensorView read = TensorView(numbers.data(), DataType::fp32, 2);
    static_assert(std::same_as<decltype(read.floats()), const float*>);
    CHECK(read.floats()[1] == 2);
}
