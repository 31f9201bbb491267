#include "api/output.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <fmt/core.h>

#include "core/csv.h"
#include "core/diagnostics.h"
#include "core/document.h"

namespace api {

namespace {

std::string csv_text(const core::Value& value) {
    if (value.is_null()) return "";
    if (value.is_string()) return value.string();
    if (!value.is_array()) return json_of(value);
    std::string text;
    for (const core::Value& item : value.items()) text += (text.empty() ? "" : " ") + csv_text(item);
    return text;
}

}  // namespace

void check_output(const std::string& option, const std::string& path, core::Diagnostics& diagnostics) {
    if (const std::optional<std::string> failure = core::writing_failure(path))
        diagnostics.error(
            {}, option,
            fmt::format("{} {}: cannot be written: {}", option, core::in_quotes(path, 300), *failure),
            "name a file in a folder that you may write");
}

void check_outputs_differ(
    const std::vector<std::pair<std::string, std::optional<std::string>>>& options_and_paths,
    core::Diagnostics& diagnostics) {
    std::map<std::string, std::string> written;
    for (const auto& [option, path] : options_and_paths) {
        if (!path || path->starts_with("/dev/")) continue;
        const auto [found, is_new] =
            written.emplace(std::filesystem::absolute(*path).lexically_normal().string(), option);
        if (!is_new)
            diagnostics.error({}, option,
                              fmt::format("{} and {} name one file, {}", found->second, option,
                                          core::in_quotes(*path, 300)),
                              "give each a file of its own");
    }
}

std::string json_of(const core::Value& value) {
    std::string text = core::to_json(value, 0);
    text.pop_back();  // the line's end
    return text;
}

std::string csv_of_rows(const core::Value& rows) {
    std::vector<std::string> columns;
    for (const core::Value& row : rows.items())
        for (const auto& [key, value] : row.members())
            if (std::find(columns.begin(), columns.end(), key) == columns.end()) columns.push_back(key);
    std::string text;
    for (const std::string& column : columns) text += (text.empty() ? "" : ",") + core::csv_cell(column);
    for (const core::Value& row : rows.items()) {
        text += '\n';
        for (std::size_t c = 0; c < columns.size(); ++c) {
            const core::Value* value = row.find(columns[c]);
            text += (c > 0 ? "," : "") + core::csv_cell(value ? csv_text(*value) : "");
        }
    }
    return text + '\n';
}

}  // namespace api
