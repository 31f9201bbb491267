#include <catch2/catch.hpp>

#include "core/diagnostics.h"
#include "core/document.h"
#include "core/reader.h"

using namespace core;

namespace {

struct Reading {
    Diagnostics diagnostics;
    Value document;
    explicit Reading(std::string_view toml) { document = parse_toml(toml, "f", diagnostics).value(); }
    TableReader reader() { return TableReader(document, "", diagnostics); }
    std::string text() const { return format(diagnostics); }
};

}  // namespace

TEST_CASE("good values are read as their type") {
    Reading input(
        "i = 4\nr = 2.5\nn = 3\nb = true\ns = 'x'\nc = 'one'\nm = '40GiB'\nt = '8us'\nw = '100Gbps'\nf = "
        "'312TFLOP/s'\nl = [1, 2]\nrs = [1, 2.5]\nss = "
        "['a']\n[sub]\nk = 1\n");
    TableReader reader = input.reader();
    CHECK(reader.required_integer("i", {.least = 1, .greatest = 4}) == 4);
    CHECK(reader.required_real("r") == 2.5);
    CHECK(reader.required_real("n") == 3.0);  // an integer is a number
    CHECK(reader.required_boolean("b"));
    CHECK(reader.required_string("s") == "x");
    CHECK(reader.required_choice("c", {"one", "two"}) == "one");
    CHECK(reader.required_bytes("m").value == 40.0 * 1073741824.0);
    CHECK(reader.required_seconds("t").value == 8e-6);
    CHECK(reader.required_bytes_per_second("w").value == 12.5e9);
    CHECK(reader.required_flops_per_second("f").value == 312e12);
    CHECK(reader.optional_integers("l").value() == std::vector<std::int64_t>{1, 2});
    CHECK(reader.optional_reals("rs").value() == std::vector<double>{1, 2.5});
    CHECK(reader.optional_strings("ss").value() == std::vector<std::string>{"a"});
    const Value* sub = reader.required_table("sub");
    REQUIRE(sub);
    CHECK(TableReader(*sub, "sub", input.diagnostics).path_of("k") == "sub.k");
    CHECK(reader.integer("absent", 7) == 7);
    CHECK_FALSE(reader.optional_string("absent").has_value());
    reader.finish();
    CHECK(input.text().empty());
}

TEST_CASE("wrong types, ranges and units are told at the value") {
    const auto told = [](std::string_view toml, auto read) {
        Reading input(toml);
        TableReader reader = input.reader();
        read(reader);
        CHECK(input.diagnostics.error_count() == 1);
        return input.text();
    };
    CHECK(told("x = 'abc'", [](TableReader& r) { r.required_integer("x", {.least = 1}); }) ==
          "f:1:5: error: x = 'abc' is a string, but an integer is expected\n  hint: give an integer of at "
          "least 1\n");
    CHECK(told("x = 4.0", [](TableReader& r) { r.required_integer("x"); }) ==
          "f:1:5: error: x = 4 is a real number, but an integer is expected\n  hint: write it without a "
          "point: 4\n");
    CHECK(told("x = 0", [](TableReader& r) {
              CHECK(r.required_integer("x", {.least = 1, .greatest = 8}) == 1);
          }) == "f:1:5: error: x = 0 is below the least allowed, 1\n  hint: give an integer from 1 to 8\n");
    CHECK(told("x = 9", [](TableReader& r) { CHECK(r.integer("x", 3, {.least = 1, .greatest = 8}) == 3); }) ==
          "f:1:5: error: x = 9 is above the greatest allowed, 8\n  hint: give an integer from 1 to 8\n");
    for (const char* odd : {"x = nan", "x = inf", "x = -inf"})
        CHECK(told(odd, [](TableReader& r) { r.required_real("x"); }).find("must be a finite number") !=
              std::string::npos);
    CHECK(told("x = -0.5", [](TableReader& r) { r.optional_real("x", {.least = 0}); }) ==
          "f:1:5: error: x = -0.5 is below the least allowed, 0\n  hint: give a number of at least 0\n");
    CHECK(told("x = 1", [](TableReader& r) { r.optional_boolean("x"); }).find("hint: write true or false") !=
          std::string::npos);
    CHECK(told("x = 1", [](TableReader& r) { r.optional_string("x"); }).find("a string is expected") !=
          std::string::npos);
    CHECK(told("x = 40", [](TableReader& r) { r.required_bytes("x"); }) ==
          "f:1:5: error: x = 40 has no unit, but an amount of memory is expected\n  hint: write the unit: "
          "\"40GiB\"\n");
    CHECK(told("x = '40 G'", [](TableReader& r) {
              r.required_bytes("x");
          }).find("x = '40 G' is not an amount of memory") != std::string::npos);
    CHECK(told("x = '-4GB'", [](TableReader& r) { r.required_bytes("x"); }).find("is negative") !=
          std::string::npos);
    CHECK(told("x = 1", [](TableReader& r) { r.optional_table("x"); }) ==
          "f:1:5: error: x = 1 is an integer, but a table is expected\n");
    CHECK(told("x = {}", [](TableReader& r) { r.optional_array("x"); }) ==
          "f:1:5: error: x is a table, but an array is expected\n");
    CHECK(told("x = [1, 'a']", [](TableReader& r) {
              CHECK_FALSE(r.optional_integers("x").has_value());
          }).find("f:1:9: error: x[1] = 'a'") == 0);
    CHECK(told("x = 'onne'", [](TableReader& r) { r.required_choice("x", {"one", "two"}); }) ==
          "f:1:5: error: x = 'onne' is not one of the allowed values\n  hint: did you mean 'one'? use one or "
          "two\n");
    CHECK(told("y = 1", [](TableReader& r) { CHECK(r.required_integer("x", {.least = 2}) == 2); }) ==
          "f:1:1: error: required key 'x' is missing\n  hint: add x = an integer of at least 2\n");
}

TEST_CASE("a key that nobody asked for is an error with the nearest known key") {
    Reading input("tensor_paralel = 2\nzzz = 1\nnote = 'x'\n");
    TableReader reader = input.reader();
    reader.integer("tensor_parallel", 1);
    reader.ignore("note");
    reader.finish();
    CHECK(input.text() ==
          "f:1:1: error: unknown key 'tensor_paralel'\n  hint: did you mean 'tensor_parallel'?\n"
          "f:2:1: error: unknown key 'zzz'\n  hint: known keys: note or tensor_parallel\n");
}

TEST_CASE("a flood of unknown keys stays readable") {
    std::string text;
    for (int i = 0; i < 1000; ++i) text += "k" + std::to_string(i) + " = 1\n";
    Reading input(text);
    TableReader reader = input.reader();
    reader.finish();
    CHECK(input.diagnostics.error_count() == 26);
    CHECK(input.text().find("975 more unknown keys") != std::string::npos);
}

TEST_CASE("null in JSON says the same as absent") {
    Diagnostics diagnostics;
    const Value document = parse_json("{\"a\": null, \"b\": null}", "f", diagnostics).value();
    TableReader reader(document, "", diagnostics);
    CHECK(reader.integer("a", 5) == 5);
    reader.required_integer("b");
    reader.finish();
    CHECK(format(diagnostics) == "f:1:18: error: required key 'b' is null\n  hint: add b = an integer\n");
}

TEST_CASE("what is no table is diagnosed once and read as empty") {
    Diagnostics diagnostics;
    const Value document = parse_json("[1]", "f", diagnostics).value();
    TableReader reader(document, "", diagnostics);
    reader.required_integer("a");
    reader.required_bytes("b");
    reader.finish();
    CHECK(format(diagnostics) == "f:1:1: error: the document is an array, but a table is expected\n");
}
