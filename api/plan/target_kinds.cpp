#include "api/plan/target_kinds.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <string_view>

#include <fmt/core.h>

#include "cluster/profile/load.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "sim/scenario.h"

namespace api {

namespace {

// A file with one of these is a scenario or a plan, not a profile.
constexpr const char* scenario_keys[] = {"cluster", "plan", "model", "what_if"};

// `*` stands for any text, `?` for one character.
bool matches(std::string_view name, std::string_view pattern) {
    if (pattern.empty()) return name.empty();
    if (pattern.front() == '*') {
        const std::size_t stars = std::min(pattern.find_first_not_of('*'), pattern.size());
        for (std::size_t skipped = 0; skipped <= name.size(); ++skipped)
            if (matches(name.substr(skipped), pattern.substr(stars))) return true;
        return false;
    }
    return !name.empty() && (pattern.front() == '?' || pattern.front() == name.front()) &&
           matches(name.substr(1), pattern.substr(1));
}

bool is_path(const std::string& name) {
    return name.find('/') != std::string::npos || name.ends_with(".toml") || name.ends_with(".json");
}

// The [cluster] of a scenario or plan. Nothing, without a diagnostic, of what is a profile or no file.
std::optional<core::Value> cluster_table(const std::string& path, core::Diagnostics& diagnostics) {
    std::error_code failure;
    if (!is_path(path) || !std::filesystem::is_regular_file(path, failure)) return std::nullopt;
    const std::optional<core::Value> document = core::load_document(path, diagnostics, {}, "--target");
    if (!document || !document->is_table()) return std::nullopt;
    const bool is_profile = !path.ends_with(".json") &&
                            std::none_of(std::begin(scenario_keys), std::end(scenario_keys),
                                         [&](const char* key) { return document->find(key) != nullptr; });
    if (is_profile) return std::nullopt;
    const std::optional<core::Value> scenario = sim::resolve_scenario_document(*document, path, diagnostics);
    const core::Value* table = scenario ? scenario->find("cluster") : nullptr;
    if (table && table->is_table()) return *table;
    if (!diagnostics.has_errors())
        diagnostics.error({path, 1, 1}, "cluster",
                          fmt::format("--target {} has no [cluster] table", core::in_quotes(path)),
                          "for example [cluster] with instance = \"p4d.24xlarge\", or name a profile");
    return std::nullopt;
}

}  // namespace

std::vector<NamedTarget> named_targets(const std::vector<std::string>& given) {
    constexpr std::size_t longest_pattern = 64;  // profiles have shorter names
    const std::vector<std::string> known = cluster::instance_names();
    std::vector<NamedTarget> targets;
    const auto add = [&](const std::string& name, bool is_of_many) {
        const auto is_same = [&](const NamedTarget& other) { return other.name == name; };
        const auto found = std::find_if(targets.begin(), targets.end(), is_same);
        if (found == targets.end()) targets.push_back({name, is_of_many});
        else found->is_of_many = found->is_of_many && is_of_many;
    };
    for (const std::string& text : given) {
        const bool is_known = std::find(known.begin(), known.end(), text) != known.end();
        std::vector<std::string> many;
        if (!is_path(text) && !is_known && text.size() <= longest_pattern)
            std::copy_if(known.begin(), known.end(), std::back_inserter(many), [&](const std::string& name) {
                return text == "all" || name.starts_with(text + ".") || matches(name, text);
            });
        for (const std::string& name : many) add(name, true);
        if (many.empty()) add(text, false);
    }
    return targets;
}

core::Value cluster_changes(const std::vector<std::string>& assignments, core::Diagnostics& diagnostics) {
    core::Value document = core::Value::table();
    for (const std::string& text : assignments) {
        const auto assignment =
            sim::parse_assignment(text, "--set", diagnostics, "cluster.network_bandwidth=2x");
        if (!assignment) continue;
        const core::SourceLocation location{"command line", 0, 0};
        if (!assignment->key.starts_with("cluster."))
            diagnostics.error(location, "--set",
                              fmt::format("--set {}: only keys of [cluster] are set for a search",
                                          core::in_quotes(assignment->key)),
                              "for example --set cluster.network_bandwidth=2x; options of their own keep "
                              "plans to degrees and the like");
        else if (assignment->key == "cluster.nodes" || assignment->key == "cluster.instance")
            diagnostics.error(location, "--set",
                              fmt::format("--set {}: that has an option of its own", assignment->key),
                              assignment->key == "cluster.nodes" ? "use --nodes" : "use --target");
        else sim::assign(document, *assignment, diagnostics);
    }
    const core::Value* changes = document.find("cluster");
    return changes ? *changes : core::Value();
}

std::optional<cluster::Cluster> load_target(const NamedTarget& target, const core::Value& changes,
                                            core::Diagnostics& diagnostics) {
    const std::size_t before = diagnostics.error_count();
    std::optional<core::Value> table = cluster_table(target.name, diagnostics);
    if (diagnostics.error_count() != before) return std::nullopt;
    if (!table) {
        std::optional<cluster::InstanceType> instance =
            cluster::load_instance(target.name, diagnostics, {}, "--target");
        if (!instance) return std::nullopt;
        if (!changes.is_table()) {
            std::optional<cluster::Cluster> plain(std::in_place);
            plain->instance = std::move(*instance);
            return plain;
        }
        table = core::Value::table();
        (*table)["instance"] = target.name;
    }
    const std::string directory =
        std::filesystem::path(table->location.file).parent_path().string();  // of the table, not the target
    if (changes.is_table())
        for (const auto& [key, value] : changes.members()) {
            const bool is_factor = value.is_string() && value.string().ends_with('x');
            if (is_factor && table->find(key) && table->find("device"))
                diagnostics.error({"command line", 0, 0}, "cluster." + key,
                                  fmt::format("{} is a factor of a profile's figure, and {} states it itself",
                                              core::in_quotes(value.string()), target.name),
                                  "give the figure");
            else (*table)[key] = value;
        }
    if (diagnostics.error_count() != before) return std::nullopt;
    return cluster::load_cluster(*table, diagnostics, directory);
}

}  // namespace api
