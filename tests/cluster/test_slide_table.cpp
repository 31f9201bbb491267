// The table of GPU instances that the announcement of SageMaker's distributed training libraries showed
// (shared/reference/features.md, rows 2.5 to 2.8):
//
//            GPU memory   between GPUs               network
//   G4dn     16 GB        PCIe only                  25-50 Gbps, 100 bare metal
//   P3       16 GB        200-300 GB/s (4, 8 GPUs)   10-25 Gbps
//   P3dn     32 GB        300 GB/s                   100 Gbps
//   P4d      40 GB        600 GB/s                   400 Gbps
//
// The middle column counts both directions of all NVLinks of one GPU; it is summed from the links of the
// graph.

#include <algorithm>
#include <set>

#include "tests/cluster/instances.h"

namespace {

std::set<double> nvlink_gigabytes_per_second(const std::string& name) {
    cluster::InstanceType instance = instance_named(name);
    std::set<double> sums;
    for (int device = 0; device < instance.devices; ++device)
        sums.insert(
            core::to_gigabytes_per_second(cluster::nvlink_bandwidth_both_directions(instance, device)));
    return sums;
}

double gigabits_per_second(const std::string& name) {
    return instance_named(name).network_bandwidth.value * 8 / 1e9;
}

const std::vector<std::string> g4dn = {"g4dn.xlarge",   "g4dn.2xlarge",  "g4dn.4xlarge", "g4dn.8xlarge",
                                       "g4dn.12xlarge", "g4dn.16xlarge", "g4dn.metal"};
const std::vector<std::string> p3 = {"p3.2xlarge", "p3.8xlarge", "p3.16xlarge"};

}  // namespace

TEST_CASE("a GPU of g4dn, p3, p3dn and p4d has 16, 16, 32 and 40 GB") {
    for (const std::string& name : g4dn)
        CHECK(core::to_gibibytes(instance_named(name).device.nominal_memory) == 16);
    for (const std::string& name : p3)
        CHECK(core::to_gibibytes(instance_named(name).device.nominal_memory) == 16);
    CHECK(core::to_gibibytes(instance_named("p3dn.24xlarge").device.nominal_memory) == 32);
    CHECK(core::to_gibibytes(instance_named("p4d.24xlarge").device.nominal_memory) == 40);
}

TEST_CASE("a process never gets all the memory that the vendor states") {
    for (const std::string& name : cluster::instance_names()) {
        cluster::InstanceType instance = instance_named(name);
        INFO(name);
        if (instance.device.nominal_memory.value > 0)
            CHECK(instance.device.memory < instance.device.nominal_memory);
        CHECK(instance.device.memory.value > 0);
    }
}

TEST_CASE("the T4s of g4dn meet over PCIe only") {
    for (const std::string& name : g4dn) {
        CHECK(nvlink_gigabytes_per_second(name) == std::set<double>{0});
        for (const cluster::Link& link : instance_named(name).links)
            CHECK(link.kind != cluster::LinkKind::nvlink);
    }
}

TEST_CASE(
    "the V100s of p3 have 200 to 300 GB/s: 200 or 250 in the half mesh of four, 300 in the mesh of eight") {
    // Half mesh: GPU 0 has 1+1+2 = 4 links, GPU 1 1+2+1 = 4, GPU 2 1+2+2 = 5, GPU 3 2+1+2 = 5, each 25 GB/s a
    // direction, 50 both.
    CHECK(nvlink_gigabytes_per_second("p3.8xlarge") == std::set<double>{200, 250});
    CHECK(nvlink_gigabytes_per_second("p3.16xlarge") == std::set<double>{300});
    CHECK(nvlink_gigabytes_per_second("p3.2xlarge") == std::set<double>{0});
}

TEST_CASE("p3dn has 300 GB/s and p4d 600 GB/s of NVLink at every GPU") {
    CHECK(nvlink_gigabytes_per_second("p3dn.24xlarge") == std::set<double>{300});
    CHECK(nvlink_gigabytes_per_second("p4d.24xlarge") == std::set<double>{600});
    CHECK(nvlink_gigabytes_per_second("p4de.24xlarge") == std::set<double>{600});
    CHECK(nvlink_gigabytes_per_second("p5.48xlarge") == std::set<double>{900});
}

TEST_CASE("H200 has the 900 GB/s of H100, Blackwell 1800, and the L40S of g6e no NVLink") {
    CHECK(nvlink_gigabytes_per_second("p5e.48xlarge") == std::set<double>{900});
    CHECK(nvlink_gigabytes_per_second("p6-b200.48xlarge") == std::set<double>{1800});
    CHECK(nvlink_gigabytes_per_second("u-p6e-gb200x72") == std::set<double>{1800});
    for (const char* name : {"g6e.12xlarge", "g6e.24xlarge", "g6e.48xlarge"})
        CHECK(nvlink_gigabytes_per_second(name) == std::set<double>{0});
}

TEST_CASE(
    "the network is 25 to 50 Gbps on g4dn, 100 on its bare metal, 10 to 25 on p3, 100 on p3dn, 400 on p4d") {
    for (const std::string& name : g4dn) {
        INFO(name);
        if (name == "g4dn.metal") CHECK(gigabits_per_second(name) == 100);
        else CHECK((gigabits_per_second(name) == 25 || gigabits_per_second(name) == 50));
    }
    CHECK(gigabits_per_second("p3.2xlarge") == 10);
    CHECK(gigabits_per_second("p3.8xlarge") == 10);
    CHECK(gigabits_per_second("p3.16xlarge") == 25);
    CHECK(gigabits_per_second("p3dn.24xlarge") == 100);
    CHECK(gigabits_per_second("p4d.24xlarge") == 400);
}

TEST_CASE("g4dn has 1, 4 or 8 T4, p3 1, 4 or 8 V100, p3dn and p4d 8 GPUs") {
    const auto devices = [](const std::vector<std::string>& names) {
        std::set<int> counts;
        for (const std::string& name : names) counts.insert(instance_named(name).devices);
        return counts;
    };
    CHECK(devices(g4dn) == std::set<int>{1, 4, 8});
    CHECK(devices(p3) == std::set<int>{1, 4, 8});
    CHECK(devices({"p3dn.24xlarge", "p4d.24xlarge", "p4de.24xlarge", "p5.48xlarge"}) == std::set<int>{8});
}

TEST_CASE("a network that bursts is simulated at the rate it sustains") {
    cluster::Cluster two = nodes_of("g4dn.xlarge", 2);
    CHECK(two.instance.network_baseline == core::gigabits_per_second(5));
    cluster::Route between = cluster::route(two, cluster::DeviceId(0), cluster::DeviceId(1));
    CHECK(between.bandwidth == core::gigabits_per_second(5) * two.instance.network_efficiency);
}
