// Typed access to the cells of one row of a CSV table, with diagnostics at its line.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/csv.h"
#include "core/diagnostics.h"

namespace validation {

class RowReader {
public:
    RowReader(const core::CsvTable& table, const core::CsvRow& row, core::Diagnostics& diagnostics)
        : table_(table), row_(row), diagnostics_(diagnostics) {}

    std::string text(const char* column) const { return std::string(table_.cell(row_, column)); }
    // Of a column a file may leave out.
    std::string optional_text(const char* column) const {
        return has_column(column) ? text(column) : std::string();
    }
    bool is_blank(const char* column) const { return table_.cell(row_, column).empty(); }

    std::int64_t integer(const char* column, std::int64_t least, std::int64_t fallback_when_blank = 0) {
        if (is_blank(column)) return fallback_when_blank;
        const std::optional<long long> value = core::parse_integer(table_.cell(row_, column));
        // Far above any model or cluster, and small enough that products of a few stay within 64 bits.
        if (!value || *value < least || *value > 100'000'000) {
            error(column,
                  fmt::format("{} = {} is not a whole number of at least {}", column,
                              core::in_quotes(text(column)), least),
                  "correct the cell");
            return least;
        }
        return *value;
    }

    std::optional<double> real(const char* column) {
        if (is_blank(column)) return std::nullopt;
        const std::optional<double> value = core::parse_real(table_.cell(row_, column));
        if (!value || *value < 0) {
            error(column,
                  fmt::format("{} = {} is not a number of at least 0", column, core::in_quotes(text(column))),
                  "correct the cell");
            return std::nullopt;
        }
        return value;
    }

    template <class T, std::size_t N>
    T choice(const char* column, const std::array<std::pair<const char*, T>, N>& words) {
        std::vector<std::string> allowed;
        for (const auto& [word, value] : words) {
            if (table_.cell(row_, column) == word) return value;
            if (*word != '\0') allowed.emplace_back(word);
        }
        error(column,
              fmt::format("{} = {} is not one of the words of this column", column,
                          core::in_quotes(text(column))),
              "use " + core::list_in_words(allowed));
        return words.front().second;
    }

    void error(const char* column, std::string message, std::string hint) {
        diagnostics_.error(table_.location(row_, column), column, std::move(message), std::move(hint));
    }

private:
    bool has_column(const char* column) const {
        return std::find(table_.header.begin(), table_.header.end(), column) != table_.header.end();
    }

    const core::CsvTable& table_;
    const core::CsvRow& row_;
    core::Diagnostics& diagnostics_;
};

}  // namespace validation
