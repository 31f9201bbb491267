// Loading that fails the test with the diagnostics when it fails.
#pragma once

#include <catch2/catch.hpp>

#include <optional>
#include <string>

#include "cluster/profile/load.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "core/value.h"

inline cluster::InstanceType instance_named(const std::string& name) {
    core::Diagnostics diagnostics;
    auto instance = cluster::load_instance(name, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(instance.has_value());
    return *instance;
}

inline cluster::Cluster nodes_of(const std::string& name, int nodes, const std::string& transport = "") {
    core::Diagnostics diagnostics;
    core::Value table = core::Value::table();
    table["instance"] = name;
    table["nodes"] = nodes;
    if (!transport.empty()) table["transport"] = transport;
    const std::optional<cluster::Cluster> cluster = cluster::load_cluster(table, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(cluster.has_value());
    return *cluster;
}

inline std::optional<cluster::Cluster> cluster_from(const std::string& toml, core::Diagnostics& diagnostics) {
    auto document = core::parse_toml(toml, "scenario.toml", diagnostics);
    REQUIRE(document.has_value());
    const core::Value* table = document->find("cluster");
    REQUIRE(table != nullptr);
    return cluster::load_cluster(*table, diagnostics);
}
