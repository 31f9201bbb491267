#include "core/display/text_table.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include <fmt/core.h>

#include "core/errors.h"

namespace core {

namespace {

// In columns of a terminal: every character of ours takes one, and UTF-8 continues with 10xxxxxx.
std::size_t columns_of(const std::string& text) {
    std::size_t columns = 0;
    for (const char c : text) columns += (c & '\xc0') != '\x80';
    return columns;
}

// "12", "1,234.5", "1.9 min", "67.8 %", "-", "": what stands to the right.
bool is_figure(const std::string& cell) {
    if (cell.empty() || cell == "-" || cell == "?") return true;
    std::size_t i = cell[0] == '-' || cell[0] == '+' ? 1 : 0;
    if (i == cell.size() || cell[i] < '0' || cell[i] > '9') return false;
    while (i < cell.size() && ((cell[i] >= '0' && cell[i] <= '9') || cell[i] == '.' || cell[i] == ',')) ++i;
    if (i < cell.size() && cell[i] == ' ') ++i;
    return cell.find_first_of(" x", i) == std::string::npos;  // a unit, and no more words
}

std::string padded(const std::string& cell, std::size_t width, bool is_right) {
    const std::string blanks(width - std::min(width, columns_of(cell)), ' ');
    return is_right ? blanks + cell : cell + blanks;
}

constexpr std::size_t between = 2;  // blanks

struct Column {
    std::size_t at, width;
    bool is_right;
};

std::string line_of(const std::vector<std::string>& cells, const std::vector<Column>& shown,
                    std::size_t indent) {
    std::string line(indent, ' ');
    for (const Column& column : shown)
        line += padded(cells[column.at], column.width, column.is_right) + std::string(between, ' ');
    line.erase(line.find_last_not_of(' ') + 1);
    return line + '\n';
}

}  // namespace

TextTable::TextTable(std::vector<std::string> headings, std::size_t indent)
    : headings_(std::move(headings)), indent_(indent) {}

void TextTable::add(std::vector<std::string> cells) {
    if (cells.size() != headings_.size()) throw InternalError("a table's row without a cell for each column");
    rows_.push_back(std::move(cells));
}

std::string TextTable::text(std::size_t width) const {
    std::vector<Column> columns;
    for (std::size_t at = 0; at < headings_.size(); ++at) {
        Column column{at, columns_of(headings_[at]), true};
        bool has_cells = rows_.empty();
        for (const std::vector<std::string>& row : rows_) {
            has_cells = has_cells || !row[at].empty();
            column.width = std::max(column.width, columns_of(row[at]));
            column.is_right = column.is_right && is_figure(row[at]);
        }
        if (has_cells) columns.push_back(column);
    }
    std::string text;
    for (std::size_t next = 0; next < columns.size();) {
        std::vector<Column> shown;
        std::size_t used = indent_;
        const auto take = [&](const Column& column) {
            used += (shown.empty() ? 0 : between) + column.width;
            shown.push_back(column);
        };
        const std::size_t first = next;
        if (first > 0) {
            text += '\n';
            take(columns[0]);
        }
        while (next < columns.size() && (next == first || used + between + columns[next].width <= width))
            take(columns[next++]);
        text += line_of(headings_, shown, indent_);
        for (const std::vector<std::string>& row : rows_) text += line_of(row, shown, indent_);
    }
    return text;
}

std::string grouped_digits(std::string digits) {
    const std::size_t first = digits.starts_with('-') ? 1 : 0;
    for (std::size_t i = digits.size(); i > first + 3;) digits.insert(i -= 3, 1, ',');
    return digits;
}

std::string with_thousands(double number) {
    constexpr double whole = 999.5;  // from here three digits leave no decimals
    constexpr double greatest = 1e15;
    const double magnitude = std::fabs(number);
    if (!(magnitude >= whole) || magnitude >= greatest) return fmt::format("{:.3g}", number);
    return with_thousands(std::llround(number));
}

}  // namespace core
