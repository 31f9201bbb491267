// Families of transformers as interop/check/families.json records them: configurations, and what its own
// classes count (interop/check/transformers_families.py).
#pragma once

#include <fstream>
#include <sstream>
#include <utility>
#include <vector>

#include "tests/model/model_from_text.h"

namespace recorded {

inline core::Value document() {
    const std::string path = SOURCE_DIR "/interop/check/families.json";
    std::ifstream file(path);
    REQUIRE(file);
    std::stringstream text;
    text << file.rdbuf();
    core::Diagnostics diagnostics;
    const auto parsed = core::parse_json(text.str(), path, diagnostics);
    REQUIRE(parsed);
    return *parsed;
}

struct Case {
    std::string family;
    core::Value config, counts;
};

// The default of every family, and its variations.
inline std::vector<Case> cases() {
    std::vector<Case> list;
    const core::Value families = document();
    for (const auto& [family, entry] : families.find("families")->members()) {
        list.push_back({family, *entry.find("config"), *entry.find("default")});
        for (const core::Value& variation : entry.find("variations")->items()) {
            Case varied{family, *entry.find("config"), variation};
            for (const auto& [key, value] : variation.find("change")->members()) varied.config[key] = value;
            list.push_back(std::move(varied));
        }
    }
    return list;
}

struct Read {
    std::optional<model::ModelGraph> graph;
    std::string errors;
};

inline Read graph_of(const Case& one) {
    core::Diagnostics diagnostics;
    std::vector<std::string> assumptions;
    auto description = model::description_of_config(one.config, assumptions, diagnostics);
    if (!description) return {std::nullopt, core::format(diagnostics)};
    const bool has_tokens = !description->find("image_size");
    if (has_tokens) (*description)["sequence_length"] = *one.counts.find("tokens");
    auto graph = model::build_from_description(*description, "", one.family, diagnostics);
    return {std::move(graph), core::format(diagnostics)};
}

}  // namespace recorded
