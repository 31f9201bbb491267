#include <catch2/catch.hpp>

#include "core/csv.h"
#include "core/diagnostics.h"

TEST_CASE(
    "a quoted cell keeps commas, doubled quotes and line breaks, and later rows keep their line numbers") {
    core::Diagnostics diagnostics;
    const auto table =
        core::parse_csv("a,b\n\"x, \"\"y\"\"\nz\",2\r\n\n3,4", "t.csv", {"a", "b"}, diagnostics);
    REQUIRE(table);
    REQUIRE(table->rows.size() == 2);
    CHECK(table->cell(table->rows[0], "a") == "x, \"y\"\nz");
    CHECK(table->cell(table->rows[0], "b") == "2");
    CHECK(table->rows[1].line == 5);  // header 1, quoted row 2 to 3, blank 4
    CHECK(table->cell(table->rows[1], "b") == "4");
    CHECK(table->cell(table->rows[1], "c").empty());
}

TEST_CASE("a row of the wrong width, a missing column and an open quote are diagnosed where they are") {
    core::Diagnostics diagnostics;
    CHECK_FALSE(core::parse_csv("a,b\n1\n1,2\n1,\"2", "t.csv", {"a", "c"}, diagnostics));
    REQUIRE(diagnostics.error_count() == 3);
    CHECK(diagnostics.entries()[0].key == "c");
    CHECK(diagnostics.entries()[1].location.line == 2);
    CHECK(diagnostics.entries()[2].location.line == 4);
    core::Diagnostics empty;
    CHECK_FALSE(core::parse_csv("", "t.csv", {}, empty));
}

TEST_CASE("a cell written is the cell read") {
    for (const std::string text : {"plain", "with, comma", "with \"quotes\"", "two\nlines", ""}) {
        core::Diagnostics diagnostics;
        const auto table = core::parse_csv("a,b\n" + core::csv_cell(text) + ",1\n", "t.csv", {}, diagnostics);
        REQUIRE(table);
        CHECK(table->rows[0].cells[0] == text);
    }
}

TEST_CASE("numbers are whole cells, finite, or nothing") {
    CHECK(core::parse_real("1.5e3") == 1500.0);
    for (const char* text : {"", "nan", "inf", "1.5x", " 1", "0x10"}) CHECK_FALSE(core::parse_real(text));
    CHECK(core::parse_integer("-7") == -7);
    CHECK_FALSE(core::parse_integer("7.0"));
}

TEST_CASE("a cell's location is its line and where it begins there, counted in characters") {
    core::Diagnostics diagnostics;
    const auto table =
        core::parse_csv("a,bb,c\n1,22,\"3\"\n\xC3\xA9\xC3\xA9,5,6\n", "t.csv", {}, diagnostics);
    REQUIRE(table);
    const auto location = [&](std::size_t row, const char* column) {
        return table->location(table->rows[row], column);
    };
    CHECK(location(0, "a").line == 2);
    CHECK(location(0, "a").column == 1);
    CHECK(location(0, "bb").column == 3);
    CHECK(location(0, "c").column == 6);
    CHECK(location(1, "bb").line == 3);
    CHECK(location(1, "bb").column == 4);  // two letters of two bytes each before the comma
    CHECK(location(1, "missing").column == 1);
}

TEST_CASE("a table that is no text is refused by its first wrong byte, and nothing of it is shown") {
    core::Diagnostics diagnostics;
    CHECK_FALSE(core::parse_csv("a,b\n1,\xFF\x01\n", "t.csv", {"a", "c"}, diagnostics));
    REQUIRE(diagnostics.error_count() == 1);
    CHECK(diagnostics.entries()[0].location.line == 2);
    CHECK(diagnostics.entries()[0].location.column == 3);
    CHECK(diagnostics.entries()[0].message == "byte 0xFF is not text: the file is not UTF-8");
}
