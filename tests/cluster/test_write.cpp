#include "cluster/build_topology.h"
#include "cluster/profile/profile_reader.h"
#include "cluster/profile/write.h"
#include "cluster/synthetic.h"
#include "core/diagnostics.h"
#include "core/random.h"
#include "tests/cluster/instances.h"

namespace {

cluster::InstanceType read_back(const cluster::InstanceType& instance) {
    core::Diagnostics diagnostics;
    std::string text = cluster::instance_to_toml(instance);
    INFO(text);
    auto document = core::parse_toml(text, "written.toml", diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(document.has_value());
    auto again = cluster::read_instance(*document, "written.toml", diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(again.has_value());
    return *again;
}

void check_same(const cluster::InstanceType& a, const cluster::InstanceType& b) {
    CHECK(a.name == b.name);
    CHECK(a.provider == b.provider);
    CHECK(a.devices == b.devices);
    CHECK(a.host_memory == b.host_memory);
    CHECK(a.virtual_cpus == b.virtual_cpus);
    CHECK(a.network_bandwidth == b.network_bandwidth);
    CHECK(a.network_baseline == b.network_baseline);
    CHECK(a.per_flow_limit == b.per_flow_limit);
    CHECK(a.network_latency == b.network_latency);
    CHECK(a.network_efficiency == b.network_efficiency);
    CHECK(a.has_gpudirect == b.has_gpudirect);
    CHECK(a.network_name == b.network_name);
    CHECK(a.notes == b.notes);
    CHECK(a.transports == b.transports);
    for (const auto& [path, provenance] : a.provenance) {
        INFO(path);
        REQUIRE(b.provenance.contains(path));
        CHECK(b.provenance.at(path) == provenance);
    }
    CHECK(a.provenance.size() == b.provenance.size());
    REQUIRE(a.vertices.size() == b.vertices.size());
    for (std::size_t i = 0; i < a.vertices.size(); ++i) {
        CHECK(a.vertices[i].name == b.vertices[i].name);
        CHECK(a.vertices[i].kind == b.vertices[i].kind);
        CHECK(a.vertices[i].numa == b.vertices[i].numa);
    }
    REQUIRE(a.links.size() == b.links.size());
    for (std::size_t i = 0; i < a.links.size(); ++i) {
        const cluster::Link &x = a.links[i], &y = b.links[i];
        CHECK((x.a == y.a && x.b == y.b && x.kind == y.kind && x.count == y.count &&
               x.bandwidth == y.bandwidth && x.efficiency == y.efficiency && x.latency == y.latency &&
               x.is_full_duplex == y.is_full_duplex && x.type == y.type));
    }
    REQUIRE(a.prices.size() == b.prices.size());
    for (std::size_t i = 0; i < a.prices.size(); ++i) {
        const cluster::Price &x = a.prices[i], &y = b.prices[i];
        CHECK((x.kind == y.kind && x.region == y.region && x.rate == y.rate && x.date == y.date &&
               x.source == y.source));
    }
    const cluster::DeviceSpec &d = a.device, &e = b.device;
    CHECK((d.name == e.name && d.architecture == e.architecture && d.memory == e.memory &&
           d.nominal_memory == e.nominal_memory));
    CHECK((d.memory_bandwidth == e.memory_bandwidth && d.memory_efficiency == e.memory_efficiency &&
           d.kernel_launch == e.kernel_launch && d.host_dispatch == e.host_dispatch));
    CHECK(
        (d.context_memory == e.context_memory && d.first_communicator_memory == e.first_communicator_memory));
    CHECK((d.further_communicator_memory == e.further_communicator_memory &&
           d.fragmentation == e.fragmentation && d.multiprocessors == e.multiprocessors));
    CHECK((d.has_concurrent_streams == e.has_concurrent_streams && d.has_gpudirect == e.has_gpudirect));
    CHECK(d.peak == e.peak);
    REQUIRE(d.matrix_product.size() == e.matrix_product.size());
    for (const auto& [type, curve] : d.matrix_product) {
        const cluster::MatrixProductCurve& other = e.matrix_product.at(type);
        CHECK((curve.compute_efficiency == other.compute_efficiency &&
               curve.memory_efficiency == other.memory_efficiency && curve.launch == other.launch));
        REQUIRE(curve.points.size() == other.points.size());
        for (std::size_t i = 0; i < curve.points.size(); ++i)
            CHECK((curve.points[i].flops == other.points[i].flops &&
                   curve.points[i].rate == other.points[i].rate));
    }
    REQUIRE(d.links.size() == e.links.size());
    for (std::size_t i = 0; i < d.links.size(); ++i) {
        const cluster::LinkSpec &x = d.links[i], &y = e.links[i];
        CHECK((x.name == y.name && x.kind == y.kind && x.bandwidth == y.bandwidth &&
               x.efficiency == y.efficiency && x.latency == y.latency && x.count == y.count &&
               x.is_full_duplex == y.is_full_duplex));
    }
    REQUIRE(d.measured_operators.size() == e.measured_operators.size());
    for (std::size_t i = 0; i < d.measured_operators.size(); ++i) {
        const cluster::MeasuredOperator &x = d.measured_operators[i], &y = e.measured_operators[i];
        CHECK((x.signature == y.signature && x.forward == y.forward && x.backward_input == y.backward_input &&
               x.backward_weight == y.backward_weight));
    }
}

}  // namespace

TEST_CASE("every shipped profile survives writing and reading without a change") {
    for (const std::string& name : cluster::instance_names()) {
        INFO(name);
        cluster::InstanceType instance = instance_named(name);
        check_same(instance, read_back(instance));
    }
}

TEST_CASE("a measured profile survives writing and reading, whatever its numbers") {
    core::Random random(7);
    for (int round = 0; round < 50; ++round) {
        cluster::InstanceType instance = instance_named("local-cpu");
        cluster::DeviceSpec& device = instance.device;
        device.memory = core::Bytes(1 + random.uniform() * 1e12);
        device.memory_bandwidth = core::BytesPerSecond(1e9 * (0.1 + random.uniform() * 100));
        device.memory_efficiency = 0.01 + 0.99 * random.uniform();
        device.kernel_launch = core::Seconds(random.uniform() * 1e-5);
        device.host_dispatch = core::Seconds(random.uniform() * 1e-5);
        device.fragmentation = random.uniform();
        device.peak[core::DataType::fp32] = core::FlopsPerSecond(random.uniform() * 1e11 + 1);
        cluster::MatrixProductCurve& curve = device.matrix_product[core::DataType::fp32];
        double work = 0;
        for (int i = 0; i < 10; ++i)
            curve.points.push_back({core::Flops(work += 1 + random.uniform() * 1e9),
                                    core::FlopsPerSecond(1 + random.uniform() * 1e11)});
        for (int i = 0; i < 5; ++i)
            device.measured_operators.push_back(
                {"linear \"" + std::to_string(i) + "\" 3x4", core::Seconds(random.uniform()),
                 core::Seconds(random.uniform() * 1e-4),
                 i % 2 ? core::Seconds() : core::Seconds(random.uniform() * 1e-7)});
        for (cluster::Link& link : instance.links)
            link.bandwidth = core::BytesPerSecond(1e9 + 7.3e8 * round + 0.1);
        instance.prices.push_back(
            {"on-demand", "here", core::dollars_per_hour(random.uniform() * 100), "2026-11-21", "a bill"});
        check_same(instance, read_back(instance));
    }
}

TEST_CASE("clusters made to measure survive writing and reading") {
    for (const std::string& intra : cluster::intra_names())
        for (int devices : {1, 4, 8}) {
            INFO(intra << " " << devices);
            core::Diagnostics diagnostics;
            cluster::NodeShape shape;
            shape.device = "A100-SXM4-80GB";
            shape.devices_per_node = devices;
            shape.intra = intra;
            shape.network_bandwidth = core::gigabits_per_second(800);
            auto instance = cluster::build_instance(shape, diagnostics);
            INFO(core::format(diagnostics));
            REQUIRE(instance.has_value());
            check_same(*instance, read_back(*instance));
        }
}
