#include "sim/cost/framework/framework_catalogue.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <set>

#include "cluster/profile/load.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "core/reader.h"

namespace sim {

namespace {

namespace fs = std::filesystem;

// Follows `extends` from profile to profile, each read once.
class ProfileResolver {
public:
    explicit ProfileResolver(core::Diagnostics& diagnostics) : diagnostics_(diagnostics) {}

    void add(const core::Value& table) {
        const core::Value* name = table.find("name");
        if (name == nullptr || !name->is_string() || name->string().empty()) {
            diagnostics_.error(table.location, "profile.name", "a profile without a name",
                               "write name = \"...\": plans name it so");
            return;
        }
        const auto [entry, is_new] = tables_.try_emplace(name->string(), &table);
        if (!is_new)
            diagnostics_.error(name->location, "profile.name",
                               "profile " + core::in_quotes(name->string()) + " stands twice, first in " +
                                   entry->second->location.file,
                               "give every profile its own name");
    }

    std::vector<FrameworkProfile> resolve() {
        for (const auto& [name, table] : tables_) profile(name);
        std::vector<FrameworkProfile> profiles;
        for (auto& [name, read] : read_)
            if (read) profiles.push_back(std::move(*read));
        return profiles;
    }

private:
    // Null when something is wrong with it, or with one that it extends.
    const FrameworkProfile* profile(const std::string& name) {
        if (const auto found = read_.find(name); found != read_.end())
            return found->second ? &*found->second : nullptr;
        const core::Value& table = *tables_.at(name);
        const FrameworkProfile* parent = nullptr;
        bool has_parent = true;
        if (const core::Value* extends = table.find("extends"); extends != nullptr && extends->is_string()) {
            underway_.push_back(name);
            parent = parent_of(*extends);
            underway_.pop_back();
            has_parent = parent != nullptr;
        }
        core::Diagnostics own;
        FrameworkProfile result = read_framework_profile(table, parent, own);
        diagnostics_.append(own);
        std::optional<FrameworkProfile>& entry = read_[name];
        if (has_parent && !own.has_errors()) entry = std::move(result);
        return entry ? &*entry : nullptr;
    }

    const FrameworkProfile* parent_of(const core::Value& extends) {
        const std::string& name = extends.string();
        if (const auto from = std::find(underway_.begin(), underway_.end(), name); from != underway_.end()) {
            std::string circle;
            for (auto at = from; at != underway_.end(); ++at) circle += *at + " extends ";
            diagnostics_.error(extends.location, "profile.extends", "circle of profiles: " + circle + name,
                               "take extends out of one of them");
            return nullptr;
        }
        if (tables_.contains(name)) return profile(name);
        std::vector<std::string> names;
        for (const auto& [known, table] : tables_) names.push_back(known);
        const std::string near = core::did_you_mean(name, names);
        diagnostics_.error(extends.location, "profile.extends",
                           "extends = " + core::in_quotes(name) + " names no profile",
                           near.empty() ? "known: " + core::list_in_words(names)
                                        : "did you mean " + core::in_quotes(near) + "?");
        return nullptr;
    }

    core::Diagnostics& diagnostics_;
    std::map<std::string, const core::Value*> tables_;
    std::map<std::string, std::optional<FrameworkProfile>> read_;
    std::vector<std::string> underway_;
};

std::string in_lower_case(std::string text) {
    for (char& letter : text) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
    return text;
}

struct Shipped {
    core::Diagnostics diagnostics;
    FrameworkCatalogue catalogue;
};

// Read-only after its first use: the same for every simulation of the process.
const Shipped& shipped() {
    static const Shipped once = [] {
        Shipped read;
        read.catalogue = FrameworkCatalogue::read(framework_files(), read.diagnostics);
        return read;
    }();
    return once;
}

}  // namespace

FrameworkCatalogue FrameworkCatalogue::read(const std::vector<std::string>& files,
                                            core::Diagnostics& diagnostics) {
    std::vector<core::Value> documents;
    for (const std::string& file : files)
        if (std::optional<core::Value> document = core::load_document(file, diagnostics))
            documents.push_back(std::move(*document));
    ProfileResolver resolver(diagnostics);
    for (const core::Value& document : documents) {
        core::TableReader reader(document, "", diagnostics);
        const std::int64_t schema = reader.required_integer("schema");
        if (reader.has("schema") && schema != framework_schema)
            reader.error("schema", "schema = " + std::to_string(schema) + " is not one this program reads",
                         "write schema = " + std::to_string(framework_schema));
        if (const core::Value* profiles = reader.required_array("profile"))
            for (const core::Value& profile : profiles->items()) resolver.add(profile);
        reader.finish();
    }
    FrameworkCatalogue catalogue;
    catalogue.profiles_ = resolver.resolve();
    return catalogue;
}

const FrameworkProfile* FrameworkCatalogue::find(std::string_view name) const {
    const auto found = std::lower_bound(
        profiles_.begin(), profiles_.end(), name,
        [](const FrameworkProfile& profile, std::string_view other) { return profile.name < other; });
    return found != profiles_.end() && found->name == name ? &*found : nullptr;
}

std::vector<std::string> FrameworkCatalogue::names() const {
    std::vector<std::string> names;
    for (const FrameworkProfile& profile : profiles_) names.push_back(profile.name);
    return names;
}

std::vector<std::string> framework_files() {
    std::vector<std::string> files;
    std::set<std::string> seen;
    for (const std::string& directory :
         cluster::data_directories("SMSIM_FRAMEWORK_PROFILES", "framework_profiles")) {
        std::error_code failure;
        std::vector<fs::path> here;
        for (const fs::directory_entry& entry : fs::directory_iterator(directory, failure))
            if (entry.path().extension() == ".toml") here.push_back(entry.path());
        std::sort(here.begin(), here.end());
        for (const fs::path& file : here)
            if (seen.insert(file.filename().string()).second) files.push_back(file.string());
    }
    return files;
}

const FrameworkCatalogue& framework_catalogue() { return shipped().catalogue; }

void check_framework(const std::string& name, core::Diagnostics& diagnostics,
                     const core::SourceLocation& location, const std::string& key) {
    if (name.empty() || framework_catalogue().find(name) != nullptr) return;
    diagnostics.append(shipped().diagnostics);
    const std::vector<std::string> names = framework_catalogue().names();
    const std::string near = core::did_you_mean(in_lower_case(name), names);
    diagnostics.error(location, key, key + " = " + core::in_quotes(name) + " names no framework profile",
                      names.empty()
                          ? "no profiles were found; set SMSIM_FRAMEWORK_PROFILES to their folder"
                          : (near.empty() ? "" : "did you mean " + core::in_quotes(near) + "? ") +
                                "known: " + core::list_in_words(names) + "; `smsim frameworks` lists them");
}

const FrameworkProfile& framework_profile(std::string_view name) {
    if (const FrameworkProfile* profile = framework_catalogue().find(name)) return *profile;
    throw core::InternalError("broken promise: the name of framework " + core::in_quotes(name) +
                              " was checked before");
}

}  // namespace sim
