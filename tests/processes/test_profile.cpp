// What `smexec profile` says of the ways in which ranks are joined, and who reads it.
#include <cmath>

#include "cluster/profile/load.h"
#include "cluster/profile/write.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "exec/transport/transport_profile.h"
#include "tests/processes/processes.h"

namespace {

using namespace processes;
using Catch::Contains;

cluster::InstanceType instance_of(const std::string& file) {
    core::Diagnostics diagnostics;
    const auto instance = cluster::load_instance(file, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(instance);
    return *instance;
}

// Whatever else this machine does: between a byte and a terabyte in a second, less than ten seconds for
// nothing.
void check_plausible(const cluster::TransportRate& rate) {
    CHECK(std::isfinite(rate.bandwidth.value));
    CHECK((rate.bandwidth.value > 1 && rate.bandwidth.value < 1e12));
    CHECK(std::isfinite(rate.latency.value));
    CHECK((rate.latency.value > 0 && rate.latency.value < 10));
}

// A profile whose links were measured between two processes joined by TCP.
std::string profile_over_tcp(const Folder& folder) {
    const std::string file = folder.path + "/links.toml";
    std::vector<Process> ranks =
        start_ranks({smexec, "profile", "--links-only", "--out", file}, 2, folder.path);
    REQUIRE(wait_for_all(ranks, std::chrono::seconds(60)));
    for (const Process& rank : ranks) {
        INFO(content_of(rank.err));
        REQUIRE(rank.code() == 0);
    }
    CHECK(content_of(ranks[1].out).empty());  // one rank speaks
    return file;
}

core::Value json_of(const Process& process) {
    core::Diagnostics diagnostics;
    const auto document = core::parse_json(content_of(process.out), "output", diagnostics);
    REQUIRE(document);
    return *document;
}

}  // namespace

TEST_CASE("smexec profile measures latency and bandwidth over TCP and MPI") {
    for (const exec::transport::MeasuredTransport& one : exec::transport::measure_transports(
             {smexec, "profile", "--links-only", "--out"}, core::seconds(60))) {
        INFO(one.name << ": " << one.failure.value_or(""));
        if (one.name == "mpi" && !has_mpirun()) {
            CHECK(one.failure);
            WARN("skipped: no mpirun on this machine");
            continue;
        }
        CHECK_FALSE(one.failure);
        check_plausible(one.rate);
    }
}

TEST_CASE("a transport that cannot be measured is named with its reason, and nothing waits for it") {
    const Clock::time_point begin = Clock::now();
    const auto measured = exec::transport::measure_transports({"/bin/false"}, core::seconds(60));
    REQUIRE(measured.size() == 2);
    for (const exec::transport::MeasuredTransport& one : measured) CHECK(one.failure);
    const auto late =
        exec::transport::measure_transports({"/bin/sh", "-c", "sleep 60"}, core::milliseconds(200));
    CHECK_THAT(late.at(0).failure.value_or(""), Contains("did not come to an end"));
    CHECK(Clock::now() - begin < std::chrono::seconds(30));
}

TEST_CASE("a profile of links is read back, and smexec predicts and runs a plan on it") {
    const Folder folder;
    const std::string profile = profile_over_tcp(folder);
    const cluster::InstanceType instance = instance_of(profile);
    CHECK(instance.devices == 2);
    REQUIRE(instance.transports.contains("tcp"));
    check_plausible(instance.transports.at("tcp"));

    const std::string plan = write_plan(
        folder.path + "/plan.toml",
        {"gpt", "", "pipeline_parallel = 2", "", "instance = \"links.toml\"\nprocess_transport = \"tcp\""});
    std::vector<Process> ranks =
        start_ranks({smexec, plan, "--compare", "--json", "--steps", "4"}, 2, folder.path);
    REQUIRE(wait_for_all(ranks, std::chrono::seconds(60)));
    INFO(content_of(ranks[0].err) << content_of(ranks[0].out));
    REQUIRE(ranks[0].code() == 0);
    const core::Value answer = json_of(ranks[0]);
    for (const char* key : {"predicted_step_s", "measured_peak_gib", "predicted_peak_gib", "tokens_per_s"}) {
        INFO(key);
        REQUIRE(answer.find(key));
        CHECK((std::isfinite(answer.find(key)->number()) && answer.find(key)->number() > 0));
    }
    CHECK(answer.find("losses")->size() == 4);
}

TEST_CASE(
    "cluster.process_transport takes the links of one transport, and a wrong one is refused at its place") {
    const Folder folder;
    const std::string profile = profile_over_tcp(folder);
    const auto at = [&](const std::string& transport) {
        return write_plan(folder.path + "/plan.toml",
                          {"gpt", "", "pipeline_parallel = 2", "",
                           "instance = \"links.toml\"\nprocess_transport = \"" + transport + "\""});
    };
    // Lines of write_plan: 14 is the cluster's second.
    const auto refusal = [&](const std::string& transport) {
        const Process process =
            run({smexec, at(transport), "--no-compare", "--ranks-from", "threads", "--steps", "1"},
                folder.path + "/log");
        CHECK(process.code() == 2);
        CHECK(content_of(process.out).empty());
        return content_of(process.err);
    };
    const std::string wrong = refusal("smoke"), unmeasured = refusal("threads");
    INFO(wrong << unmeasured);
    CHECK_THAT(wrong, Contains("plan.toml:14:21: ") && Contains("process_transport") && Contains("smoke") &&
                          Contains("tcp"));
    CHECK_THAT(unmeasured,
               Contains("plan.toml:14:21: ") && Contains("joined by threads") && Contains("it has tcp"));
    CHECK(unmeasured.find("error: ") == unmeasured.rfind("error: "));  // one message

    // The simulator takes the rate that the key names: a thousandth of the bandwidth and a thousand times the
    // latency make the step longer.
    cluster::InstanceType two = instance_of(profile);
    const cluster::TransportRate fast = two.transports.at("tcp");
    two.transports["mpi"] = {fast.bandwidth / 1000, fast.latency * 1000};
    two.provenance["transport.mpi"] = {"made for a test", "2026-11-21", "assumed"};
    std::ofstream(profile) << cluster::instance_to_toml(two);
    const auto step = [&](const std::string& transport) {
        const Process process = run({BINARY_DIR "/smsim", at(transport), "--json"}, folder.path + "/log");
        INFO(content_of(process.err) << content_of(process.out));
        REQUIRE(process.code() == 0);
        return json_of(process).find("step_time_s")->number();
    };
    CHECK(step("mpi") > step("tcp"));
}

TEST_CASE("smexec profile refuses what it cannot do") {
    const Folder folder;
    const auto refusal = [&](std::vector<std::string> arguments) {
        arguments.insert(arguments.begin(), {smexec, "profile"});
        const Process process = run(arguments, folder.path + "/log");
        CHECK(process.code() == 2);
        return content_of(process.err);
    };
    CHECK_THAT(refusal({}), Contains("--out is missing"));
    CHECK_THAT(refusal({"--out", folder.path + "/a.toml", "--links-only", "--ranks-from", "threads"}),
               Contains("what lies between processes"));
    CHECK_THAT(refusal({"--out", folder.path + "/a.toml", "--ranks-from", "smoke"}),
               Contains("--ranks-from") && Contains("threads"));
    CHECK_FALSE(fs::exists(folder.path + "/a.toml"));
}
