#include <catch2/catch.hpp>

#include "core/errors.h"
#include "core/value.h"

using namespace core;

TEST_CASE("a value grows from null to table or array") {
    Value value;
    value["a"]["b"] = 1;
    value["list"].append("x");
    value["list"].append(2.5);
    CHECK(value.find("a")->find("b")->integer() == 1);
    CHECK(value.find("list")->size() == 2);
    CHECK(value.find("absent") == nullptr);
    CHECK(value.find("list")->find("x") == nullptr);
    CHECK(value.find("a")->find("b")->number() == 1.0);
    CHECK(Value(std::vector<double>{1, 2}).items()[1].number() == 2);
    CHECK(Value(std::size_t{3}).integer() == 3);
    CHECK(Value().is_null());
}

TEST_CASE("reading a value as another kind is a broken promise") {
    CHECK_THROWS_AS(Value(1).string(), InternalError);
    CHECK_THROWS_AS(Value("x").number(), InternalError);
    CHECK_THROWS_AS(Value(1.0).integer(), InternalError);
    CHECK_THROWS_AS(Value(1)["key"], InternalError);
    CHECK_THROWS_AS(Value("x").append(1), InternalError);
    CHECK_THROWS_AS(Value::table().items(), InternalError);
}
