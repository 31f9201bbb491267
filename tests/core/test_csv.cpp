#include <catch2/catch.hpp>

#include "core/csv.h"

TEST_CASE("a quoted cell keeps commas, doubled quotes and line breaks, and later rows keep their line numbers") {
    core::Diagnostics diagnostics;
    const auto table = core::parse_csv("a,b\n\"x, \"\"y\"\"\nz\",2\r\n\n3,4", "t.csv", {"a", "b"}, diagnostics);
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
