#include <unistd.h>
#include <algorithm>
#include <filesystem>
#include <fstream>

#include "cluster/build_topology.h"
#include "cluster/profile/write.h"
#include "cluster/synthetic.h"
#include "core/diagnostics.h"
#include "tests/cluster/instances.h"

using cluster::Cluster;
using cluster::DeviceId;

namespace {

Cluster good(const std::string& toml) {
    core::Diagnostics diagnostics;
    auto cluster = cluster_from(toml, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(cluster.has_value());
    return *cluster;
}

// GPUs beside a Grace CPU state NVLink-C2C instead.
bool has_pcie(const std::string& device) {
    core::Diagnostics diagnostics;
    const auto spec = cluster::load_device(device, diagnostics);
    REQUIRE(spec.has_value());
    return std::any_of(spec->links.begin(), spec->links.end(),
                       [](const cluster::LinkSpec& link) { return link.kind == cluster::LinkKind::pcie; });
}

std::string errors_of(const std::string& toml) {
    core::Diagnostics diagnostics;
    auto cluster = cluster_from(toml, diagnostics);
    CHECK(!cluster.has_value());
    CHECK(diagnostics.has_errors());
    for (const core::Diagnostic& entry : diagnostics.entries()) CHECK(!entry.hint.empty());
    return core::format(diagnostics);
}

}  // namespace

TEST_CASE("a cluster is an instance type and a number of nodes") {
    Cluster cluster = good("[cluster]\ninstance = \"p4d.24xlarge\"\nnodes = 16\n");
    CHECK(cluster.device_count() == 128);
    CHECK(cluster.assumptions.empty());
    // 21.957642 USD/h a node on 2026-07-20.
    CHECK(core::to_dollars_per_hour(cluster::price(cluster)) == Approx(16 * 21.957642));
    CHECK(cluster.node_of(DeviceId(17)) == 2);
    CHECK(cluster.local_index(DeviceId(17)) == 1);
}

TEST_CASE("a device where an instance is wanted is answered with how to describe a node of it") {
    CHECK_THAT(errors_of("[cluster]\ninstance = \"H100\"\n"), Catch::Contains("it is a device"));
    CHECK_THAT(errors_of("[cluster]\ninstance = \"A100-SXM4-80GB\"\n"), Catch::Contains("it is a device"));
    CHECK_THAT(errors_of("[cluster]\ninstance = \"p4d.24xlrge\"\n"), !Catch::Contains("it is a device"));
}

TEST_CASE("a what-if changes what it names, and is told") {
    Cluster cluster = good(
        "[cluster]\ninstance = \"p4d.24xlarge\"\nnodes = 2\nnetwork_bandwidth = \"200Gbps\"\nnetwork_latency "
        "= \"10us\"\nmemory = \"80GiB\"\nprice = 30.0\n");
    // Half the rate at the same four cards: 6.25 GB/s each, 85 % of it.
    CHECK(cluster::route(cluster, DeviceId(0), DeviceId(8)).bandwidth ==
          core::gigabytes_per_second(6.25) * 0.85);
    CHECK(cluster::route(cluster, DeviceId(0), DeviceId(8)).latency.value == Approx(10e-6));
    CHECK(cluster.instance.device.memory == core::gibibytes(80));
    CHECK(core::to_dollars_per_hour(cluster::price(cluster)) == Approx(60));
    CHECK(cluster.assumptions.size() == 4);
    CHECK(cluster.assumptions[0] == "network_bandwidth = 25 GB/s instead of 50 GB/s");
}

TEST_CASE("a factor is of the profile's figure") {
    const Cluster plain = good("[cluster]\ninstance = \"p4d.24xlarge\"\nnodes = 2\n");
    const Cluster changed = good(
        "[cluster]\ninstance = \"p4d.24xlarge\"\nnodes = 2\nnetwork_bandwidth = \"0.5x\"\nnetwork_latency "
        "= \"3x\"\nmemory = \"2x\"\nprice = \"1.25x\"\n");
    const cluster::Route before = cluster::route(plain, DeviceId(0), DeviceId(8)),
                         after = cluster::route(changed, DeviceId(0), DeviceId(8));
    CHECK(after.bandwidth.value == Approx(before.bandwidth.value / 2));
    CHECK(after.latency.value == Approx(3 * before.latency.value));
    CHECK(changed.instance.device.memory == plain.instance.device.memory * 2);
    CHECK(cluster::price(changed).value == Approx(1.25 * cluster::price(plain).value));
    CHECK(changed.assumptions[0] == "network_bandwidth = 25 GB/s instead of 50 GB/s");
    // It can be written down again: what it was read from is kept.
    REQUIRE(changed.table.find("memory"));
    CHECK(changed.table.find("memory")->string() == "2x");
    for (const char* wrong : {"\"-2x\"", "\"x\"", "\"0x\"", "\"1e999x\"", "\"2 x\"", "\"infx\""})
        CHECK_FALSE(errors_of(std::string("[cluster]\ninstance = \"p4d.24xlarge\"\nmemory = ") + wrong + "\n")
                        .empty());
    // Of a figure that there is not.
    CHECK(errors_of("[cluster]\ninstance = \"local-cpu\"\nprice = \"2x\"\n").find("has no such figure") !=
          std::string::npos);
}

TEST_CASE("a network faster than the PCIe link before it is told to be of no use") {
    // Four cards of 50 GB/s behind PCIe 3 x16, which carries 15.75 x 0.784 = 12.35 GB/s.
    Cluster cluster =
        good("[cluster]\ninstance = \"p4d.24xlarge\"\nnodes = 2\nnetwork_bandwidth = \"1600Gbps\"\n");
    CHECK(cluster::route(cluster, DeviceId(0), DeviceId(8)).bandwidth ==
          core::gigabytes_per_second(15.75) * 0.784);
    REQUIRE(cluster.assumptions.size() == 2);
    CHECK(cluster.assumptions[1].find("not by the network") != std::string::npos);
}

TEST_CASE("turning GPUDirect off sends the bytes through the host") {
    Cluster with = good("[cluster]\ninstance = \"p4d.24xlarge\"\nnodes = 2\n");
    Cluster without = good("[cluster]\ninstance = \"p4d.24xlarge\"\nnodes = 2\ngpudirect = false\n");
    CHECK(cluster::route(with, DeviceId(0), DeviceId(8)).links.size() == 6);
    CHECK(cluster::route(without, DeviceId(0), DeviceId(8)).links.size() == 10);
}

TEST_CASE("cores of this machine form a node; a second node needs a network to be named") {
    Cluster one = good("[cluster]\ninstance = \"local-cpu\"\n");
    CHECK(one.instance.devices >= 1);
    CHECK(!one.instance.device.has_concurrent_streams);
    CHECK(one.instance.host_memory.value > 0);
    CHECK(one.instance.device.memory * static_cast<double>(one.instance.devices) <=
          one.instance.host_memory * (1 + 1e-12));
    CHECK(errors_of("[cluster]\ninstance = \"local-cpu\"\nnodes = 2\n").find("has no network") !=
          std::string::npos);
    Cluster two = good(
        "[cluster]\ninstance = \"local-cpu\"\nnodes = 2\nnetwork_bandwidth = \"10Gbps\"\nnetwork_latency = "
        "\"30us\"\n");
    CHECK(cluster::route(two, DeviceId(0), DeviceId(two.instance.devices)).bandwidth ==
          core::gigabits_per_second(10));
}

TEST_CASE("a measured profile of this machine stands above the shipped one") {
    std::string path =
        std::filesystem::temp_directory_path() / ("local" + std::to_string(getpid()) + ".toml");
    cluster::InstanceType measured = instance_named("local-cpu");
    measured.device.memory_bandwidth = core::gigabytes_per_second(17.25);
    std::ofstream(path) << cluster::instance_to_toml(measured);
    setenv("SMSIM_LOCAL_PROFILE", path.c_str(), 1);
    CHECK(instance_named("local-cpu").device.memory_bandwidth == core::gigabytes_per_second(17.25));
    CHECK(instance_named(path).device.memory_bandwidth == core::gigabytes_per_second(17.25));
    std::filesystem::remove(path);
    core::Diagnostics diagnostics;
    CHECK(!cluster::load_instance("local-cpu", diagnostics).has_value());  // asked for and not there
    CHECK(core::format(diagnostics).find(path) != std::string::npos);
    unsetenv("SMSIM_LOCAL_PROFILE");
}

TEST_CASE("a DGX A100 made to measure has 300 GB/s a direction inside and 25 GB/s a GPU outside") {
    Cluster dgx = good(
        "[cluster]\ndevice = \"A100-SXM4-80GB\"\ndevices_per_node = 8\nnodes = 4\nintra = "
        "\"nvswitch\"\nnetwork_cards = 8\nnetwork_bandwidth = \"1600Gbps\"\n");
    CHECK(cluster::nvlink_bandwidth_both_directions(dgx.instance, 5) == core::gigabytes_per_second(600));
    CHECK(cluster::route(dgx, DeviceId(0), DeviceId(7)).bandwidth == core::gigabytes_per_second(300) * 0.913);
    // Two cards of 200 Gbit/s a switch, two GPUs: PCIe 4 x16 lets one GPU alone have 31.5 x 0.762 = 24 GB/s.
    CHECK(cluster::route(dgx, DeviceId(0), DeviceId(8)).bandwidth ==
          core::gigabytes_per_second(31.5) * 0.762);
    CHECK(cluster::network_cards(dgx.instance) == 8);
    CHECK(dgx.instance.has_gpudirect);
    // What nobody said is told.
    std::string notes;
    for (const std::string& note : dgx.instance.notes) notes += note + "\n";
    CHECK(notes.find("network.latency is assumed") != std::string::npos);
    CHECK(notes.find("network.efficiency is assumed") != std::string::npos);
    CHECK(notes.find("topology is assumed") != std::string::npos);
}

TEST_CASE("a DGX-1 made to measure is wired like p3dn") {
    Cluster dgx =
        good("[cluster]\ndevice = \"V100-32\"\ndevices_per_node = 8\nintra = \"hybrid-cube-mesh\"\n");
    Cluster p3dn = nodes_of("p3dn.24xlarge", 1);
    for (int a = 0; a < 8; ++a)
        for (int b = 0; b < 8; ++b) {
            cluster::Route made = cluster::route(dgx, DeviceId(a), DeviceId(b)),
                           shipped = cluster::route(p3dn, DeviceId(a), DeviceId(b));
            CHECK(made.bandwidth == shipped.bandwidth);
            CHECK(made.latency.value == Approx(shipped.latency.value).margin(1e-15));
        }
}

TEST_CASE("four V100s in a full mesh have two links to each other") {
    Cluster quad = good("[cluster]\ndevice = \"V100-16\"\ndevices_per_node = 4\nintra = \"full-mesh\"\n");
    for (int a = 0; a < 4; ++a) {
        CHECK(core::to_gigabytes_per_second(cluster::nvlink_bandwidth_both_directions(quad.instance, a)) ==
              Approx(300));
        for (int b = 0; b < 4; ++b)
            if (a != b)
                CHECK(cluster::route(quad, DeviceId(a), DeviceId(b)).bandwidth.value == Approx(50e9 * 0.85));
    }
}

TEST_CASE("every way to join every device builds, from one to sixteen of them, and every pair is reached") {
    core::Diagnostics diagnostics;
    for (const std::string& device : cluster::device_names())
        for (const std::string& intra : cluster::intra_names())
            for (int n : {1, 2, 4, 8, 16}) {
                cluster::NodeShape shape;
                shape.device = device;
                shape.devices_per_node = n;
                shape.intra = intra;
                shape.network_bandwidth = core::gigabits_per_second(400);
                if (intra == "hybrid-cube-mesh" && n != 4 && n != 8) continue;
                if (intra != "pcie" && intra != "host")
                    shape.intra_bandwidth = core::gigabytes_per_second(100);
                if (!has_pcie(device)) shape.pcie_bandwidth = core::gigabytes_per_second(450);
                auto instance = cluster::build_instance(shape, diagnostics);
                INFO(device << " " << intra << " " << n << core::format(diagnostics));
                REQUIRE(instance.has_value());
                Cluster two{*instance, 2, {}};
                for (int to = 1; to < 2 * n; ++to)
                    CHECK(cluster::route(two, DeviceId(0), DeviceId(to)).bandwidth.value > 0);
            }
}

TEST_CASE("a device without PCIe figures is joined over PCIe only at a rate that the scenario says") {
    const std::string quad = "[cluster]\ndevice = \"GB200\"\ndevices_per_node = 4\nintra = \"nvswitch\"\n";
    CHECK(errors_of(quad).find("say pcie_bandwidth") != std::string::npos);
    CHECK(good(quad + "pcie_bandwidth = \"450GB/s\"\n").instance.devices == 4);
}

TEST_CASE("the names by which published clusters call their GPUs find the device of that memory and power") {
    // Of shared/measurements/clusters_2.csv, and of torch for the cards beside them.
    const std::vector<std::pair<std::string, std::string>> names = {{"T4", "T4-16GB"},
                                                                    {"V100", "V100-SXM2-16GB"},
                                                                    {"A100-40", "A100-SXM4-40GB"},
                                                                    {"A100-80", "A100-SXM4-80GB"},
                                                                    {"H100", "H100-SXM5-80GB"},
                                                                    {"H200", "H200-SXM5-141GB"},
                                                                    {"A100-PCIE-40GB", "A100-PCIe-40GB"},
                                                                    {"A100-PCIe", "A100-PCIe-80GB"},
                                                                    {"H100-PCIe", "H100-PCIe-80GB"},
                                                                    {"H100-NVL", "H100-NVL-94GB"},
                                                                    {"H200-NVL", "H200-NVL-141GB"},
                                                                    {"GH200", "GH200-96GB-900W"},
                                                                    {"L40S", "L40S-48GB"},
                                                                    {"B200", "B200-SXM-180GB"},
                                                                    {"GB200", "GB200-186GB"}};
    core::Diagnostics diagnostics;
    for (const auto& [alias, name] : names) {
        INFO(alias);
        const auto device = cluster::load_device(alias, diagnostics);
        REQUIRE(device.has_value());
        CHECK(device->name == name);
    }
    for (const char* unknown : {"RTX 4090", "A6000", "P100", "B300"})
        CHECK(!cluster::load_device(unknown, diagnostics).has_value());
}

TEST_CASE("a wrong [cluster] table is told by key with what is allowed") {
    CHECK(errors_of("[cluster]\ninstance = \"p4d.24xlrge\"\n").find("did you mean 'p4d.24xlarge'") !=
          std::string::npos);
    CHECK(errors_of("[cluster]\ninstance = \"p4d.24xlarge\"\nnodes = 0\n").find("scenario.toml:3:9") !=
          std::string::npos);
    CHECK(errors_of("[cluster]\ninstance = \"p4d.24xlarge\"\nnodes = 1000000000000\n").find("nodes") !=
          std::string::npos);
    CHECK(errors_of("[cluster]\ninstance = \"p4d.24xlarge\"\nnode = 2\n").find("did you mean") !=
          std::string::npos);
    CHECK(errors_of("[cluster]\ninstance = \"p4d.24xlarge\"\nnetwork_bandwidth = \"fast\"\n")
              .find("data rate") != std::string::npos);
    CHECK(errors_of("[cluster]\ninstance = \"p4d.24xlarge\"\nnetwork_bandwidth = \"0Gbps\"\n").find("zero") !=
          std::string::npos);
    CHECK(errors_of("[cluster]\ninstance = \"p4d.24xlarge\"\nprice = nan\n").find("finite") !=
          std::string::npos);
    CHECK(errors_of("[cluster]\ninstance = \"p4d.24xlarge\"\nmemory = \"0GiB\"\n").find("zero") !=
          std::string::npos);
    CHECK(errors_of("[cluster]\ninstance = \"\"\n").find("empty") != std::string::npos);
    CHECK(errors_of("[cluster]\ninstance = \"./missing.toml\"\n").find("no such file") != std::string::npos);
    CHECK(errors_of("[cluster]\nnodes = 4\n").find("cluster.instance") != std::string::npos);
    CHECK(errors_of("[cluster]\ndevice = \"A100-SXM4-90GB\"\ndevices_per_node = 8\nintra = \"nvswitch\"\n")
              .find("did you mean") != std::string::npos);
    CHECK(errors_of("[cluster]\ndevice = \"T4\"\ndevices_per_node = 8\nintra = \"nvswitch\"\n")
              .find("has no NVLink") != std::string::npos);
    CHECK(errors_of("[cluster]\ndevice = \"A100\"\ndevices_per_node = 6\nintra = \"hybrid-cube-mesh\"\n")
              .find("8 devices") != std::string::npos);
    CHECK(errors_of("[cluster]\ndevice = \"A100\"\ndevices_per_node = 8\nintra = \"string\"\n")
              .find("nvswitch") != std::string::npos);
    CHECK(errors_of("[cluster]\ndevice = \"A100\"\ndevices_per_node = 8\nnodes = 2\nintra = \"nvswitch\"\n")
              .find("has no network") != std::string::npos);
    CHECK(errors_of("[cluster]\ndevice = \"A100\"\ndevices_per_node = 8\nintra = "
                    "\"nvswitch\"\nintra_bandwidth = \"0GB/s\"\n")
              .find("zero") != std::string::npos);
}

TEST_CASE("the clusters of the published measurements can all be made") {
    core::Diagnostics diagnostics;
    auto text = core::read_file(SHARED_DIR "/measurements/clusters.csv", diagnostics);
    if (!text) {
        WARN("skipped: shared/measurements/clusters.csv is not here");
        return;
    }
    const std::map<std::string, std::string> intra = {{"nvlink2_hybrid_cube_mesh", "hybrid-cube-mesh"},
                                                      {"nvlink2_nvswitch", "nvswitch"},
                                                      {"nvlink3_nvswitch", "nvswitch"},
                                                      {"nvlink4_nvswitch", "nvswitch"},
                                                      {"nvlink2_quad", "full-mesh"},
                                                      {"pcie3", "host"},
                                                      {"none", "host"}};
    std::istringstream lines(*text);
    std::string line;
    std::getline(lines, line);
    int made = 0;
    while (std::getline(lines, line)) {
        std::vector<std::string> cells;
        std::istringstream row(line);
        for (std::string cell; std::getline(row, cell, ',');) cells.push_back(cell);
        REQUIRE(cells.size() >= 10);
        INFO(line);
        REQUIRE(intra.contains(cells[4]));
        cluster::NodeShape shape;
        shape.device = cells[1];
        shape.devices_per_node = std::stoi(cells[3]);
        shape.intra = intra.at(cells[4]);
        shape.network_cards = std::stoi(cells[6]);
        shape.network_bandwidth = core::gigabits_per_second(std::stod(cells[7]) * shape.network_cards);
        if (cells[8] != "none") shape.transport = cells[8];
        auto instance = cluster::build_instance(shape, diagnostics);
        INFO(core::format(diagnostics));
        REQUIRE(instance.has_value());
        if (shape.intra == "hybrid-cube-mesh" || shape.intra == "nvswitch" || shape.intra == "full-mesh")
            CHECK(core::to_gigabytes_per_second(cluster::nvlink_bandwidth_both_directions(*instance, 0)) ==
                  Approx(2 * std::stod(cells[5])));
        ++made;
    }
    CHECK(made > 0);
}
