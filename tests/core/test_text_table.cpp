#include "core/display/text_table.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <sstream>

using namespace core;

namespace {

std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
}

TextTable plans() {
    TextTable table({"#", "schedule", "step", "price", "note"});
    table.add({"1", "1f1b", "9.5 s", "", "memory"});
    table.add({"2", "grouped-interleaved x5", "12 s", "", "compute"});
    return table;
}

}  // namespace

TEST_CASE("a table's columns begin and end together whatever its cells hold") {
    CHECK(plans().text() ==
          "  #  schedule                 step  note\n"
          "  1  1f1b                    9.5 s  memory\n"
          "  2  grouped-interleaved x5   12 s  compute\n");  // nobody has a price
}

TEST_CASE("a table that is too wide goes on below with its first column, and loses nothing") {
    for (std::size_t width = 30; width <= 60; ++width) {
        const std::string text = plans().text(width);
        for (const std::string& line : lines_of(text)) CHECK(line.size() <= width);
        for (const char* cell : {"grouped-interleaved x5", "9.5 s", "12 s", "memory", "compute"})
            CHECK(text.find(cell) != std::string::npos);
        const std::vector<std::string> lines = lines_of(text);
        const auto tables = 1 + std::count(lines.begin(), lines.end(), "");
        CHECK(std::count_if(lines.begin(), lines.end(),
                            [](const std::string& line) { return line.starts_with("  2"); }) == tables);
    }
}

TEST_CASE("numbers have three significant digits and separated thousands") {
    CHECK(with_thousands(1234567) == "1,234,567");
    CHECK(with_thousands(-1000) == "-1,000");
    CHECK(with_thousands(999) == "999");
    CHECK(with_thousands(0.012345) == "0.0123");
    CHECK(with_thousands(12.345) == "12.3");
    CHECK(with_thousands(999.7) == "1,000");
    CHECK(with_thousands(8562.4) == "8,562");
}
