#include "core/csv.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/diagnostics.h"
#include "core/document.h"
#include "core/text.h"

namespace core {

namespace {

// One pass over the text; `line` counts physical lines so that a diagnostic names the line where a row
// starts.
class CsvScanner {
public:
    explicit CsvScanner(std::string_view text) : text_(text) {
        if (text_.starts_with("\xEF\xBB\xBF"))
            text_.remove_prefix(3);  // byte order mark of spreadsheet programs
    }

    bool at_end() const { return position_ >= text_.size(); }
    bool has_unclosed_quote() const { return unclosed_; }

    CsvRow next() {
        CsvRow row;
        row.line = line_;
        row.columns.push_back(1);
        int column = 0;  // of the latest character, in the row's first line
        std::string cell;
        bool quoted = false;
        while (position_ < text_.size()) {
            const char c = text_[position_++];
            const auto byte = static_cast<unsigned char>(c);
            if (byte < 0x80 || byte > 0xBF) ++column;
            if (quoted) {
                if (c == '"' && position_ < text_.size() && text_[position_] == '"') {
                    cell += '"';
                    ++position_;
                } else if (c == '"') {
                    quoted = false;
                } else {
                    if (c == '\n') ++line_;
                    cell += c;
                }
            } else if (c == '"' && cell.empty()) {
                quoted = true;
            } else if (c == ',') {
                row.cells.push_back(std::move(cell));
                row.columns.push_back(column + 1);
                cell.clear();
            } else if (c == '\n') {
                ++line_;
                break;
            } else if (c != '\r') {
                cell += c;
            }
        }
        unclosed_ = quoted;
        row.cells.push_back(std::move(cell));
        return row;
    }

private:
    std::string_view text_;
    std::size_t position_ = 0;
    int line_ = 1;
    bool unclosed_ = false;
};

}  // namespace

std::optional<std::size_t> CsvTable::column(std::string_view name) const {
    const auto found = std::find(header.begin(), header.end(), name);
    if (found == header.end()) return std::nullopt;
    return static_cast<std::size_t>(found - header.begin());
}

std::string_view CsvTable::cell(const CsvRow& row, std::string_view column_name) const {
    const std::optional<std::size_t> index = column(column_name);
    return index ? std::string_view(row.cells[*index]) : std::string_view{};
}

SourceLocation CsvTable::location(const CsvRow& row, std::string_view column_name) const {
    const std::optional<std::size_t> index = column(column_name);
    return {file, row.line, index && *index < row.columns.size() ? row.columns[*index] : 1};
}

std::optional<CsvTable> parse_csv(std::string_view text, const std::string& file_name,
                                  const std::vector<std::string>& required, Diagnostics& diagnostics) {
    if (!check_text(text, file_name, diagnostics)) return std::nullopt;
    CsvTable table;
    table.file = file_name;
    CsvScanner scanner(text);
    if (scanner.at_end()) {
        diagnostics.error({file_name, 1, 1}, "", "the file is empty", "the first line names the columns");
        return std::nullopt;
    }
    table.header = scanner.next().cells;
    const std::size_t errors_before = diagnostics.error_count();
    for (const std::string& name : required)
        if (!table.column(name))
            diagnostics.error({file_name, 1, 1}, name, "column \"" + name + "\" is missing",
                              "there are " + list_in_words(table.header));
    while (!scanner.at_end() && diagnostics.error_count() < errors_before + 20) {
        CsvRow row = scanner.next();
        if (scanner.has_unclosed_quote())
            diagnostics.error({file_name, row.line, 1}, "",
                              "a quoted cell is not closed before the end of the file", "close it with \"");
        if (row.cells.size() == 1 && row.cells[0].empty()) continue;  // blank line
        if (row.cells.size() != table.header.size()) {
            diagnostics.error({file_name, row.line, 1}, "",
                              "the row has " + std::to_string(row.cells.size()) + " cells, the header " +
                                  std::to_string(table.header.size()),
                              "a cell with a comma needs quotes");
            continue;
        }
        table.rows.push_back(std::move(row));
    }
    if (diagnostics.error_count() > errors_before) return std::nullopt;
    return table;
}

std::optional<CsvTable> load_csv(const std::string& path, const std::vector<std::string>& required,
                                 Diagnostics& diagnostics) {
    const std::optional<std::string> text = read_file(path, diagnostics, {}, "", std::size_t{256} << 20);
    if (!text) return std::nullopt;
    return parse_csv(*text, path, required, diagnostics);
}

std::optional<double> parse_real(std::string_view text) {
    double value = 0;
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (failure != std::errc{} || end != text.data() + text.size() || !std::isfinite(value))
        return std::nullopt;
    return value;
}

std::optional<long long> parse_integer(std::string_view text) {
    long long value = 0;
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (failure != std::errc{} || end != text.data() + text.size()) return std::nullopt;
    return value;
}

std::string csv_cell(std::string_view text) {
    if (text.find_first_of(",\"\n\r") == std::string_view::npos) return std::string(text);
    std::string quoted = "\"";
    for (const char c : text) {
        if (c == '"') quoted += '"';
        quoted += c;
    }
    return quoted + '"';
}

}  // namespace core
