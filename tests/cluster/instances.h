// Loading that fails the test with the diagnostics when it fails.
#pragma once

#include <catch2/catch.hpp>

#include <string>

#include "cluster/load.h"
#include "core/diagnostics.h"
#include "core/document.h"

inline cluster::InstanceType instance_named(const std::string& name) {
    core::Diagnostics diagnostics;
    auto instance = cluster::load_instance(name, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(instance.has_value());
    return *instance;
}

inline cluster::Cluster nodes_of(const std::string& name, int nodes) {
    cluster::Cluster cluster;
    cluster.instance = instance_named(name);
    cluster.nodes = nodes;
    return cluster;
}

inline std::optional<cluster::Cluster> cluster_from(const std::string& toml, core::Diagnostics& diagnostics) {
    auto document = core::parse_toml(toml, "scenario.toml", diagnostics);
    REQUIRE(document.has_value());
    const core::Value* table = document->find("cluster");
    REQUIRE(table != nullptr);
    return cluster::load_cluster(*table, diagnostics);
}
