// Every bad profile is told with its place, key and a way out. Each case is a good profile with one thing
// wrong.

#include <unistd.h>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "cluster/profile/profile_reader.h"
#include "core/diagnostics.h"
#include "core/random.h"
#include "tests/cluster/instances.h"

namespace {

const std::string good = R"(schema = 1
name = "small"

[instance]
source = "a bill"
date = "2026-11-21"
devices = 2
host_memory = "64GiB"

[device]
source = "a sheet"
date = "2026-11"
name = "card"
memory = "16GiB"
memory_bandwidth = "300GB/s"
memory_efficiency = 0.8

[device.precision.fp16]
source = "a sheet"
date = "2026"
peak = "65TFLOP/s"
compute_efficiency = 0.6
memory_efficiency = 0.8
launch = "8us"

[network]
source = "a sheet"
date = "2026-11-21"
name = "tcp"
bandwidth = "25Gbps"
latency = "50us"
efficiency = 0.8

[topology]
source = "a drawing"
date = "2026-11-21"
hosts = ["numa0"]
nics = ["nic0"]
connect = [
    { link = "pcie", from = ["devices", "nic0"], to = "numa0" },
]

[topology.link.pcie]
source = "a sheet"
date = "2026-11-21"
kind = "pcie"
bandwidth = "16GB/s"

[[price]]
kind = "on-demand"
usd_per_hour = 1.5
date = "2026-11-21"
source = "a bill"
)";

std::string with(std::string from, const std::string& to) {
    std::string text = good;
    std::size_t at = text.find(from);
    INFO(from);
    REQUIRE(at != std::string::npos);
    return text.replace(at, from.size(), to);
}

core::Diagnostics diagnostics_of(const std::string& text, bool must_have_provenance = false) {
    core::Diagnostics diagnostics;
    if (auto document = core::parse_toml(text, "small.toml", diagnostics)) {
        auto instance = cluster::read_instance(*document, "small.toml", diagnostics, must_have_provenance);
        CHECK(instance.has_value() == !diagnostics.has_errors());
    }
    return diagnostics;
}

struct BadCase {
    std::string from, to;
    int line;          // of the first error
    std::string said;  // part of its message or hint
};

void check_bad(const BadCase& bad, bool must_have_provenance = false) {
    core::Diagnostics diagnostics = diagnostics_of(with(bad.from, bad.to), must_have_provenance);
    std::string text = core::format(diagnostics);
    INFO(bad.to);
    INFO(text);
    REQUIRE(diagnostics.has_errors());
    const core::Diagnostic& first = diagnostics.entries().front();
    CHECK(first.location.file == "small.toml");
    CHECK(first.location.line == bad.line);
    CHECK(first.location.column > 0);
    CHECK(text.find(bad.said) != std::string::npos);
    CHECK(!first.hint.empty());
}

}  // namespace

TEST_CASE("the profile that the bad ones are made from is good") {
    core::Diagnostics diagnostics = diagnostics_of(good, true);
    INFO(core::format(diagnostics));
    CHECK(!diagnostics.has_errors());
}

TEST_CASE("a bad profile is told by line and key, with a way out") {
    const BadCase cases[] = {
        {"schema = 1", "schema = 2", 1, "schema = 1"},
        {"devices = 2", "devices = 0", 7, "instance.devices"},
        {"devices = 2", "devices = -8", 7, "instance.devices"},
        {"devices = 2", "devices = 1000000000", 7, "greatest allowed, 256"},
        {"devices = 2", "devices = 2.5", 7, "integer"},
        {"devices = 2", "devices = \"two\"", 7, "integer"},
        {"host_memory = \"64GiB\"", "host_memory = \"-64GiB\"", 8, "negative"},
        {"host_memory = \"64GiB\"", "host_memory = 64", 8, "no unit"},
        {"memory = \"16GiB\"", "memory = \"0GiB\"", 14, "zero"},
        {"memory = \"16GiB\"", "memory = \"-1GiB\"", 14, "negative"},
        {"memory = \"16GiB\"", "memory = \"1e30GiB\"", 14, "beyond any machine"},
        {"memory = \"16GiB\"", "memory = \"16Gbps\"", 14, "amount of memory"},
        {"memory = \"16GiB\"", "memory = nan", 14, "unit"},
        {"memory_efficiency = 0.8", "memory_efficiency = 0.8\nkernel_lanch = \"1us\"", 17,
         "did you mean 'kernel_launch'"},
        {"memory_efficiency = 0.8", "memory_efficiency = 1.2", 16, "above the greatest allowed"},
        {"memory_efficiency = 0.8", "memory_efficiency = nan", 16, "finite"},
        {"memory_efficiency = 0.8", "memory_efficiency = 0.0", 16, "never finish"},
        {"memory_efficiency = 0.8", "memory_efficiency = 0.8\nsmell = 3", 17, "smell"},
        {"[device.precision.fp16]", "[device.precision.fp15]", 18, "fp15"},
        {"bandwidth = \"25Gbps\"", "bandwith = \"25Gbps\"", 26, "network.bandwidth"},
        {"peak = \"65TFLOP/s\"", "peak = \"65\"", 21, "compute rate"},
        {"compute_efficiency = 0.6", "compute_efficiency = 60", 22, "greatest allowed, 1"},
        {"launch = \"8us\"", "launch = \"8us\"\npoints = [[1e9, 1e12], [1e8, 1e12]]", 25, "growing"},
        {"launch = \"8us\"", "launch = \"8us\"\npoints = [[1e9, nan]]", 25, "positive"},
        {"bandwidth = \"25Gbps\"", "bandwidth = \"25Gbps\"\nbaseline = \"50Gbps\"", 31, "sustained"},
        {"bandwidth = \"25Gbps\"", "bandwidth = \"0Gbps\"", 30, "zero"},
        {"latency = \"50us\"", "latency = \"-50us\"", 31, "negative"},
        {"latency = \"50us\"", "cards = 3", 26, "latency"},
        {"hosts = [\"numa0\"]", "hosts = [\"numa0..999999999\"]", 37, "range"},
        {"hosts = [\"numa0\"]", "hosts = [\"numa0..99999999999999999999999\"]", 37, "range"},
        {"hosts = [\"numa0\"]", "hosts = [\"numa9..0\"]", 37, "range"},
        {"hosts = [\"numa0\"]", "hosts = [\"numa0\", \"numa0\"]", 37, "twice"},
        {"nics = [\"nic0\"]", "nics = [\"nic0\", \"nic1\"]", 38, "dealt out"},
        {"{ link = \"pcie\"", "{ link = \"pci\"", 40, "did you mean"},
        {"to = \"numa0\"", "to = \"numa1\"", 40, "did you mean"},
        {"to = \"numa0\"", "to = \"gpu0\"", 40, "itself"},
        {"from = [\"devices\", \"nic0\"]", "from = [\"gpu0\", \"nic0\"]", 39, "no way from gpu0 to gpu1"},
        {"from = [\"devices\", \"nic0\"]", "from = [\"devices\"]", 39, "no way from gpu0 to a network card"},
        {"to = \"numa0\" }", "to = \"numa0\", count = 0 }", 40, "count"},
        {"to = \"numa0\" }", "to = \"numa0\", count = 1000000 }", 40, "count"},
        {"kind = \"pcie\"", "kind = \"pigeon\"", 46, "nvlink"},
        {"bandwidth = \"16GB/s\"", "bandwidth = \"16GB/s\"\nefficiency = 1.01", 48, "greatest"},
        {"bandwidth = \"16GB/s\"", "bandwidth = \"inf\"", 47, "data rate"},
        {"usd_per_hour = 1.5", "usd_per_hour = -1.5", 51, "least"},
        {"kind = \"on-demand\"", "kind = \"free\"", 50, "on-demand"},
        {"date = \"2026-11\"", "date = \"last week\"", 12, "2026-07-20"},
        {"date = \"2026-11\"", "date = \"2026-13\"", 12, "no date"},
        {"[topology.link.pcie]",
         "[topology.mesh]\nlink = \"pcie\"\ncounts = [[0, 1], [2, 0]]\n[topology.link.pcie]", 45,
         "symmetric"},
        {"[topology.link.pcie]",
         "[topology.mesh]\nlink = \"pcie\"\ncounts = [[0, 1, 1], [1, 0]]\n[topology.link.pcie]", 45, "row"},
        {"name = \"card\"", "name = \"card\"\nconfidence = \"sure\"", 14, "measured"},
        {"devices = 2", "devices = 2\ndevice = \"T4-16GB\"", 4, "beside"},
    };
    for (const BadCase& bad : cases) check_bad(bad);
}

TEST_CASE("lint fails on a figure without source or date") {
    const BadCase cases[] = {
        {"source = \"a bill\"\ndate = \"2026-11-21\"\ndevices", "date = \"2026-11-21\"\ndevices", 6,
         "no source"},
        {"date = \"2026-11\"\nname", "name", 13, "no date"},
        {"source = \"a sheet\"\ndate = \"2026\"\n", "", 19, "device.precision.fp16.peak has no source"},
        {"source = \"a sheet\"\ndate = \"2026-11-21\"\nname = \"tcp\"", "name = \"tcp\"", 28,
         "network.bandwidth has no source"},
        {"source = \"a drawing\"\n", "", 38, "topology.connect has no source"},
        {"source = \"a sheet\"\ndate = \"2026-11-21\"\nkind = \"pcie\"", "kind = \"pcie\"", 45,
         "topology.link.pcie.bandwidth has no source"},
        {"usd_per_hour = 1.5\ndate = \"2026-11-21\"", "usd_per_hour = 1.5", 51, "without date"},
    };
    for (const BadCase& bad : cases) {
        CHECK(!diagnostics_of(with(bad.from, bad.to)).has_errors());  // fit for use, but not for shipping
        check_bad(bad, true);
    }
}

TEST_CASE("a key's own source stands above its section's") {
    core::Diagnostics diagnostics;
    auto document = core::parse_toml(
        with("memory = \"16GiB\"",
             "memory = \"16GiB\"\nmemory_source = \"weighed\"\nmemory_confidence = \"assumed\""),
        "small.toml", diagnostics);
    auto instance = cluster::read_instance(*document, "small.toml", diagnostics, true);
    INFO(core::format(diagnostics));
    REQUIRE(instance.has_value());
    CHECK(instance->provenance.at("device.memory").source == "weighed");
    CHECK(instance->provenance.at("device.memory").date == "2026-11");
    CHECK(instance->provenance.at("device").source == "a sheet");
    REQUIRE(instance->notes.size() == 1);
    CHECK(instance->notes[0] == "device.memory is assumed: weighed (2026-11)");
}

TEST_CASE("lint passes over every shipped profile and device") {
    std::vector<std::string> files = cluster::profile_files();
    CHECK(files.size() >= 26);
    for (const std::string& file : files) {
        core::Diagnostics diagnostics;
        cluster::lint_profile(file, diagnostics);
        INFO(core::format(diagnostics));
        CHECK(diagnostics.entries().empty());
    }
}

TEST_CASE("lint of a missing file and of a file under another name says so") {
    core::Diagnostics missing;
    cluster::lint_profile("/nowhere/at/all.toml", missing);
    CHECK(missing.error_count() == 1);
    std::string path = std::filesystem::temp_directory_path() / ("lint" + std::to_string(getpid()) + ".toml");
    std::ofstream(path) << good;
    core::Diagnostics renamed;
    cluster::lint_profile(path, renamed);
    std::remove(path.c_str());
    CHECK(core::format(renamed).find("is not the name of the file") != std::string::npos);
}

TEST_CASE("noise, deep nesting and huge tables end in diagnostics") {
    std::string noise;
    for (int i = 0; i < 100000; ++i) noise += static_cast<char>((i * 7919) % 251);
    CHECK(diagnostics_of(noise).has_errors());
    CHECK(diagnostics_of(good + "x = " + std::string(5000, '[') + std::string(5000, ']')).has_errors());
    std::string many = with("connect = [", "connect = [\n");
    std::string rows;
    for (int i = 0; i < 20000; ++i) rows += "    { link = \"pcie\", from = \"gpu0\", to = \"numa0\" },\n";
    CHECK(diagnostics_of(with("connect = [\n", "connect = [\n" + rows)).has_errors());
    CHECK(diagnostics_of(with("[topology.link.pcie]",
                              "[topology.mesh]\nlink = \"pcie\"\ncounts = []\n[topology.link.pcie]"))
              .has_errors());
}

TEST_CASE("a shipped profile with bytes changed, cut or doubled is read or told to be wrong") {
    core::Random random(20261121);
    for (const char* name : {"p3.8xlarge", "p5.48xlarge", "local-cpu", "g4dn.metal"}) {
        core::Diagnostics unused;
        const std::string original = *core::read_file(cluster::profile_path(name), unused);
        for (int round = 0; round < 150; ++round) {
            std::string text = original;
            for (std::uint64_t i = 0, changes = 1 + random.below(4); i < changes; ++i) {
                const std::size_t at = random.below(text.size());
                switch (random.below(4)) {
                    case 0: text[at] = static_cast<char>(random.below(128)); break;
                    case 1: text.erase(at, 1 + random.below(20)); break;
                    case 2: text.insert(at, text.substr(random.below(text.size()), random.below(60))); break;
                    default: text.insert(at, std::to_string(random.next())); break;
                }
                if (text.empty()) text = original;
            }
            diagnostics_of(text);  // checks that there is an instance or an error
        }
    }
}
