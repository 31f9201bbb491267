// Models and machines of the catalogue, by name.
#pragma once

#include <catch2/catch.hpp>

#include <cstdint>

#include "cluster/load.h"
#include "core/diagnostics.h"
#include "model/load.h"

inline model::ModelGraph graph_of(const core::Value& table) {
    core::Diagnostics diagnostics;
    auto graph = model::load_model(table, {}, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(graph);
    return *graph;
}

inline model::ModelGraph load_graph(const char* name, std::int64_t tokens = 0) {
    core::Value table;
    table["name"] = name;
    if (tokens > 0) table["sequence_length"] = tokens;
    return graph_of(table);
}

inline cluster::Cluster load_machines(const char* instance, int nodes = 1) {
    core::Value table;
    table["instance"] = instance;
    table["nodes"] = nodes;
    core::Diagnostics diagnostics;
    auto cluster = cluster::load_cluster(table, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(cluster);
    return *cluster;
}
