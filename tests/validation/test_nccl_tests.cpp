#include <fmt/core.h>
#include <catch2/catch.hpp>

#include <string>
#include <vector>

#include "cluster/profile/load.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "schedule/plan/plan.h"
#include "sim/cost/collective/collective.h"
#include "validation/measured/nccl_tests.h"

namespace {

using schedule::CollectiveKind;

struct Size {
    double bytes = 0, microseconds = 0;
};

// The layout of nccl-tests 2.17 to 2.20 (src/common.cu, NVIDIA/nccl-tests), typed anew.
std::string log_of(int nodes, int ranks_per_node, const std::vector<Size>& sizes,
                   const std::string& starting = "# Collective test starting: all_reduce_perf\n",
                   const std::string& wrong = "0") {
    std::string text =
        "host-0: some launcher's greeting\n# nccl-tests version 2.20.0 nccl-headers=23102\n" + starting +
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 5\n#\n"
        "# Using devices\n";
    for (int rank = 0; rank < nodes * ranks_per_node; ++rank)
        text +=
            fmt::format("#  Rank {:2} Group  0 Pid {} on host-{} device {:2} [0x8d] NVIDIA A100-SXM4-40GB\n",
                        rank, 1887 + rank, rank / ranks_per_node, rank % ranks_per_node);
    text +=
        "#\n#                              out-of-place                       in-place\n"
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   "
        "algbw   busbw  #wrong\n#        (B)    (elements)                               (us)  (GB/s)\n";
    for (const Size& size : sizes)
        text += fmt::format(
            "{:12.0f} {:12.0f}     float     sum      -1 {:8.2f}    0.23    0.23       {} {:8.2f}"
            "    0.27    0.27     N/A\n",
            size.bytes, size.bytes / 4, size.microseconds * 1.01, wrong, size.microseconds * 0.99);
    return text + "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 0.4\n#\n";
}

std::string messages_of(const std::string& text, const std::optional<std::string>& collective = {}) {
    core::Diagnostics diagnostics;
    CHECK_FALSE(validation::read_nccl_tests(text, "log.txt", collective, diagnostics));
    return core::format(diagnostics);
}

core::Value p4d() {
    core::Value table = core::Value::table();
    table["instance"] = "p4d.24xlarge";
    return table;
}

}  // namespace

TEST_CASE("a log of nccl-tests says who took part, what ran and how long it took") {
    core::Diagnostics diagnostics;
    const auto tests = validation::read_nccl_tests(log_of(2, 8, {{0, 5}, {8, 50}, {1 << 20, 400}}), "log.txt",
                                                   {}, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(tests);
    CHECK(tests->collective == CollectiveKind::all_reduce);
    CHECK(tests->ranks == 16);
    CHECK(tests->nodes == 2);
    CHECK(tests->version == "2.20.0");
    CHECK(tests->device == "NVIDIA A100-SXM4-40GB");
    REQUIRE(tests->rows.size() == 2);  // nothing is learned from no bytes
    CHECK(tests->rows[1].bytes == core::Bytes(1 << 20));
    CHECK(tests->rows[1].time.value == Approx(400e-6).epsilon(1e-4));  // the mean of both measurements
}

TEST_CASE("what is no log of nccl-tests, or of a test that failed, is refused with its line") {
    CHECK(messages_of("{\"traceEvents\": []}\n").find("no output of nccl-tests") != std::string::npos);
    CHECK(messages_of(log_of(2, 8, {{8, 50}}, "")).find("--collective") != std::string::npos);
    const std::string all_to_all =
        messages_of(log_of(2, 8, {{8, 50}}, "# Collective test starting: alltoall_perf\n"));
    CHECK(all_to_all.find("log.txt:3:1: error: alltoall is no collective") != std::string::npos);
    CHECK(all_to_all.find("all_reduce, all_gather and reduce_scatter") != std::string::npos);
    CHECK(messages_of(log_of(2, 8, {{8, 50}}, "# Collective test starting: all_reduce_perf\n", "3"))
              .find("values of 8 bytes were wrong") != std::string::npos);
    std::string old = log_of(2, 1, {{8, 50}});
    old.replace(old.find("redop    root"), 13, "redop        ");  // as before 2.10
    CHECK(messages_of(old).find("columns of another version") != std::string::npos);
    std::string uneven = log_of(2, 2, {{8, 50}});
    uneven.replace(uneven.find("on host-1"), 9, "on host-0");
    CHECK(messages_of(uneven).find("another host has 3") != std::string::npos);
    // Versions before 2.17 do not say which test ran; a person does.
    core::Diagnostics diagnostics;
    const auto named =
        validation::read_nccl_tests(log_of(2, 1, {{8, 50}}, ""), "log.txt", "all_gather", diagnostics);
    REQUIRE(named);
    CHECK(named->collective == CollectiveKind::all_gather);
}

TEST_CASE("a network whose tests were made by the model with other figures is recognised") {
    const double efficiency = 0.55;
    const core::Seconds latency = core::seconds(120e-6);
    core::Diagnostics diagnostics;
    core::Value made = p4d();
    made["nodes"] = 4;
    made["network_efficiency"] = efficiency;
    made["network_latency"] = "120us";
    const auto cluster = cluster::load_cluster(made, diagnostics);
    REQUIRE(cluster);
    schedule::Plan plan;
    plan.layout = {32, 1, 1, "PDT"};
    plan.communication = "nccl";
    sim::CommunicationCost cost(plan, *cluster);
    const auto [word, kind] = GENERATE(table<std::string, CollectiveKind>(
        {{"all_reduce", CollectiveKind::all_reduce}, {"reduce_scatter", CollectiveKind::reduce_scatter}}));
    std::vector<Size> sizes;
    for (double bytes = 1024; bytes < 3e9; bytes *= 8)
        sizes.push_back(
            {bytes, cost.collective(kind, schedule::GroupKind::data, core::Bytes(bytes), 0).value * 1e6});
    const auto tests = validation::read_nccl_tests(
        log_of(4, 8, sizes, "# Collective test starting: " + word + "_perf\n"), "log.txt", {}, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(tests);
    const auto fit = validation::fit_network(*tests, p4d(), diagnostics);
    REQUIRE(fit);
    CHECK(fit->efficiency == Approx(efficiency).epsilon(0.02));
    CHECK(fit->latency.value == Approx(latency.value).epsilon(0.02));
    CHECK(fit->efficiency_before == Approx(0.85));
    CHECK(fit->error_before_pct > 20);
    CHECK(fit->error_pct < 2);
    // What is written is read back as a cluster, and predicts the same.
    const auto document = core::parse_toml(
        validation::cluster_table(*fit, *tests, p4d(), "log.txt", "2026-11-23"), "cluster.toml", diagnostics);
    REQUIRE(document);
    const auto again = cluster::load_cluster(*document->find("cluster"), diagnostics);
    REQUIRE(again);
    CHECK(again->nodes == 4);
    CHECK(again->instance.network_efficiency == Approx(fit->efficiency).epsilon(1e-3));
}

TEST_CASE("tests within a node, of one size, or of more ranks than devices fit no network") {
    const auto refused = [](const std::string& log) {
        core::Diagnostics diagnostics;
        const auto tests = validation::read_nccl_tests(log, "log.txt", {}, diagnostics);
        REQUIRE(tests);
        CHECK_FALSE(validation::fit_network(*tests, p4d(), diagnostics));
        return core::format(diagnostics);
    };
    CHECK(refused(log_of(1, 8, {{8, 50}, {1024, 60}})).find("within one node") != std::string::npos);
    CHECK(refused(log_of(2, 8, {{8, 50}})).find("one size") != std::string::npos);
    CHECK(refused(log_of(2, 16, {{8, 50}, {1024, 60}})).find("has 8 devices") != std::string::npos);
}
