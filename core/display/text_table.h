// A table for people: aligned whatever its cells hold, and no wider than the place where it is shown.
#pragma once

#include <concepts>
#include <cstddef>
#include <string>
#include <vector>

namespace core {

// Columns of a terminal of which nothing is known.
constexpr std::size_t usual_width = 80;

class TextTable {
public:
    explicit TextTable(std::vector<std::string> headings, std::size_t indent = 2);

    // As many cells as there are headings.
    void add(std::vector<std::string> cells);
    // Numbers to the right, words to the left, columns without any cell left out. Columns that do not fit
    // into `width` follow in a second table below that repeats the first column; a column is never cut.
    std::string text(std::size_t width = usual_width) const;

private:
    std::vector<std::string> headings_;
    std::vector<std::vector<std::string>> rows_;
    std::size_t indent_;
};

// "12,345,678" of "12345678", a minus before it allowed.
std::string grouped_digits(std::string digits);
std::string with_thousands(std::integral auto number) { return grouped_digits(std::to_string(number)); }
// Three significant digits, thousands separated: "0.0123", "12.3", "8,560".
std::string with_thousands(double number);

}  // namespace core
