#include "cluster/describe.h"
#include "tests/cluster/instances.h"

TEST_CASE("the list of instances has a line for each and the words of the slide") {
    std::vector<cluster::InstanceType> all;
    for (const std::string& name : cluster::instance_names()) all.push_back(instance_named(name));
    std::string text = cluster::describe_list(all, 200);
    for (const cluster::InstanceType& instance : all)
        CHECK(text.find("\n" + instance.name + " ") != std::string::npos);
    CHECK(text.find("NVSwitch 600 GB/s") != std::string::npos);
    CHECK(text.find("NVLink 200-250 GB/s") != std::string::npos);
    CHECK(cluster::list_to_value(all).find("instances")->size() == all.size());
}

TEST_CASE("a description names the source of every figure it shows") {
    for (const std::string& name : cluster::instance_names()) {
        INFO(name);
        cluster::InstanceType instance = instance_named(name);
        core::Value document = cluster::describe_to_value(instance);
        REQUIRE(document.find("figures")->size() > 10);
        for (const char* list : {"figures", "links", "prices"})
            for (const core::Value& entry : document.find(list)->items()) {
                INFO(core::to_json(entry));
                CHECK(!entry.find("source")->string().empty());
                CHECK(!entry.find("date")->string().empty());
            }
        std::string text = cluster::describe(instance);
        for (const std::string& note : instance.notes) CHECK(text.find(note) != std::string::npos);
        for (const auto& [path, provenance] : instance.provenance)
            if (provenance.confidence == "assumed")
                CHECK(text.find(path + " is assumed") != std::string::npos);
    }
}

TEST_CASE("the matrix of routes in a description is the one that route() gives") {
    cluster::Cluster one = nodes_of("p3.16xlarge", 1);
    core::Value document = cluster::describe_to_value(one.instance);
    const core::Value::Array& rows = document.find("routes_gigabytes_per_s")->items();
    REQUIRE(rows.size() == 8);
    CHECK(rows[0].items()[0].is_null());
    CHECK(rows[0].items()[3].number() == 42.5);   // two links of 25 at 85 %
    CHECK(rows[0].items()[1].number() == 21.25);  // one
    CHECK(rows[0].items()[5].number() == 10);     // PCIe and sockets
}
