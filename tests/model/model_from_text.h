// Models for tests, from descriptions or configs written in the test.
#pragma once

#include <catch2/catch.hpp>

#include <optional>
#include <string>

#include "core/diagnostics.h"
#include "core/document.h"
#include "model/load.h"
#include "model/reader/description.h"
#include "model/reader/huggingface.h"

inline model::ModelGraph graph_of(const std::string& toml) {
    core::Diagnostics diagnostics;
    const auto table = core::parse_toml(toml, "inline.toml", diagnostics);
    REQUIRE(table);
    const auto graph = model::load_model(*table, {}, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(graph);
    return *graph;
}

// What is wrong with a description, as the user reads it; empty when nothing is.
inline std::string errors_of(const std::string& toml) {
    core::Diagnostics diagnostics;
    const auto table = core::parse_toml(toml, "inline.toml", diagnostics);
    if (table) model::load_model(*table, {}, diagnostics);
    return core::format(diagnostics);
}

struct ConfigResult {
    std::optional<model::ModelGraph> graph;
    std::string errors;
};

inline ConfigResult read_config(const std::string& json) {
    ConfigResult result;
    core::Diagnostics diagnostics;
    std::vector<std::string> assumptions;
    if (const auto config = core::parse_json(json, "config.json", diagnostics))
        if (const auto description = model::description_of_config(*config, assumptions, diagnostics)) {
            result.graph = model::build_from_description(*description, "", "test", diagnostics);
            if (result.graph)
                result.graph->assumptions.insert(result.graph->assumptions.end(), assumptions.begin(),
                                                 assumptions.end());
        }
    result.errors = core::format(diagnostics);
    return result;
}
