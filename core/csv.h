// Comma-separated tables with a header line, as RFC 4180 has them: quoted cells may hold commas, doubled
// quotes and line breaks.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/diagnostics_fwd.h"

namespace core {

struct CsvRow {
    int line = 0;                    // where the row starts
    std::vector<std::string> cells;  // as many as the header has
    std::vector<int> columns =
        {};  // where each of them begins in its line, in code points; empty in a row made by hand
};

struct CsvTable {
    std::string file;
    std::vector<std::string> header;
    std::vector<CsvRow> rows;

    std::optional<std::size_t> column(std::string_view name) const;
    // Cell of a row; empty when the column is absent.
    std::string_view cell(const CsvRow& row, std::string_view column_name) const;
    // Location of that cell, or of the row when the column is absent.
    SourceLocation location(const CsvRow& row, std::string_view column_name) const;
};

// Every row must have as many cells as the header; a missing column of `required` is a diagnostic that lists
// the columns there are.
std::optional<CsvTable> parse_csv(std::string_view text, const std::string& file_name,
                                  const std::vector<std::string>& required, Diagnostics& diagnostics);
std::optional<CsvTable> load_csv(const std::string& path, const std::vector<std::string>& required,
                                 Diagnostics& diagnostics);

// Whole text as a finite number, or nothing.
std::optional<double> parse_real(std::string_view text);
std::optional<long long> parse_integer(std::string_view text);

// A cell as RFC 4180 writes it: quoted when it holds a comma, a quote or a line break.
std::string csv_cell(std::string_view text);

}  // namespace core
