#include "model/reader/catalogue.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/document.h"
#include "core/system/installed_data.h"
#include "model/load.h"

namespace model {

namespace {

namespace fs = std::filesystem;

std::vector<fs::path> catalogue_files() {
    std::vector<fs::path> files;
    const std::string directory = catalogue_directory();
    std::error_code failure;
    for (fs::directory_iterator entry(directory, failure), end; !failure && entry != end;
         entry.increment(failure))
        if (entry->path().extension() == ".toml") files.push_back(entry->path());
    std::sort(files.begin(), files.end());
    return files;
}

std::string text_of(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

std::string unquoted(std::string_view text) {
    if (text.size() >= 2 && text.front() == '"' && text.back() == '"') text = text.substr(1, text.size() - 2);
    return std::string(text);
}

// Names a catalogue file offers, read from its lines without parsing it: `[name]`, `["name"]` and `aliases =
// ["...", ...]` each stand alone on a line.
std::vector<std::string> names_in(const std::string& text) {
    std::vector<std::string> names;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        while (!line.empty() && (line.back() == ' ' || line.back() == '\r')) line.pop_back();
        if (line.size() > 2 && line.front() == '[' && line.back() == ']')
            names.push_back(unquoted(std::string_view(line).substr(1, line.size() - 2)));
        if (!line.starts_with("aliases")) continue;
        for (std::size_t begin = line.find('"'); begin != std::string::npos;) {
            const std::size_t end = line.find('"', begin + 1);
            if (end == std::string::npos) break;
            names.push_back(line.substr(begin + 1, end - begin - 1));
            begin = line.find('"', end + 1);
        }
    }
    return names;
}

bool has_alias(const core::Value& entry, const std::string& name) {
    const core::Value* aliases = entry.find("aliases");
    if (!aliases || !aliases->is_array()) return false;
    return std::any_of(aliases->items().begin(), aliases->items().end(),
                       [&](const core::Value& alias) { return alias.is_string() && alias.string() == name; });
}

}  // namespace

std::string catalogue_directory() {
    if (const char* chosen = std::getenv("SMSIM_MODEL_CATALOG"); chosen && *chosen) return chosen;
    std::error_code failure;
    for (const std::string& installed : core::installed_data("model/catalog"))
        if (fs::is_directory(installed, failure)) return installed;
    if (const fs::path source = fs::path(SOURCE_DIR) / "model" / "catalog"; fs::is_directory(source, failure))
        return source.string();
    return {};
}

std::optional<core::Value> catalogue_entry(const std::string& name, core::Diagnostics& diagnostics) {
    for (const fs::path& path : catalogue_files()) {
        const std::string text = text_of(path);
        const std::vector<std::string> names = names_in(text);
        if (std::find(names.begin(), names.end(), name) == names.end()) continue;
        const std::optional<core::Value> document = core::parse_toml(text, path.string(), diagnostics);
        if (!document) return std::nullopt;
        for (const auto& [key, entry] : document->members())
            if (key == name || has_alias(entry, name)) {
                core::Value found = entry;
                if (!found.find("name")) found["name"] = key;
                return found;
            }
    }
    return std::nullopt;
}

std::vector<std::string> catalogue_names() {
    std::vector<std::string> names;
    for (const fs::path& path : catalogue_files())
        for (std::string& name : names_in(text_of(path))) names.push_back(std::move(name));
    std::sort(names.begin(), names.end());
    return names;
}

}  // namespace model
