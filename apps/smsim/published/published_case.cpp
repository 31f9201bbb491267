#include "apps/smsim/published/published_case.h"

#include <filesystem>

#include "core/diagnostics.h"
#include "core/document.h"
#include "core/reader.h"

namespace apps {

namespace {

PublishedCase read_case(core::TableReader& reader, const std::filesystem::path& folder) {
    PublishedCase entry;
    entry.name = reader.required_string("name");
    entry.figure = reader.required_string("figure");
    entry.scenario = (folder / reader.required_string("scenario")).string();
    const std::string kind = reader.required_choice("kind", {"step", "job", "gain"});
    entry.kind = kind == "job"    ? PublishedKind::job
                 : kind == "gain" ? PublishedKind::gain
                                  : PublishedKind::step;
    entry.set = reader.optional_strings("set").value_or(std::vector<std::string>{});
    entry.against = reader.optional_strings("against").value_or(std::vector<std::string>{});
    entry.least = reader.optional_real("least", {.least = -1e30, .greatest = 1e30});
    entry.most = reader.optional_real("most", {.least = -1e30, .greatest = 1e30});
    entry.unit = reader.string("unit", "");
    entry.source = reader.required_string("source");
    entry.date = reader.required_string("date");
    entry.note = reader.string("note", "");
    if (entry.kind != PublishedKind::gain && reader.has("against"))
        reader.error("against", reader.path_of("against") + " is of a gain", "write kind = \"gain\"");
    if (entry.least && entry.most && *entry.least > *entry.most)
        reader.error("least", reader.path_of("least") + " is above most", "swap them");
    reader.finish();
    return entry;
}

}  // namespace

std::optional<PublishedCases> load_published_cases(const std::string& path, core::Diagnostics& diagnostics) {
    const std::optional<core::Value> document = core::load_document(path, diagnostics);
    if (!document) return std::nullopt;
    core::TableReader reader(*document, "", diagnostics);
    PublishedCases cases;
    reader.required_integer("version", {.least = 1, .greatest = 1});
    cases.title = reader.required_string("title");
    if (const core::Value* array = reader.optional_array("case"))
        for (const core::Value& item : array->items()) {
            core::TableReader entry(item, "case[" + std::to_string(cases.cases.size()) + "]", diagnostics);
            cases.cases.push_back(read_case(entry, std::filesystem::path(path).parent_path()));
        }
    else reader.error("case", "no [[case]]", "add one (docs/formats.md)");
    reader.finish();
    if (diagnostics.has_errors()) return std::nullopt;
    return cases;
}

}  // namespace apps
