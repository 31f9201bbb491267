// Models of the catalogue, by name.
#pragma once

#include <catch2/catch.hpp>

#include <cstdint>
#include <string>

#include "core/diagnostics.h"
#include "model/load.h"

inline model::ModelGraph graph_of(const core::Value& table) {
    core::Diagnostics diagnostics;
    auto graph = model::load_model(table, {}, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(graph);
    return *graph;
}

inline model::ModelGraph load_graph(const std::string& name, std::int64_t tokens = 0) {
    core::Value table;
    table["name"] = name;
    if (tokens > 0) table["sequence_length"] = tokens;
    return graph_of(table);
}
