// What was published of long trainings, beside what jobs/ says of them.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "core/diagnostics.h"
#include "jobs/job_distribution.h"
#include "jobs/resolve_job.h"
#include "model/load.h"
#include "tests/jobs/example_job.h"

using core::seconds;
using jobs::JobDistribution;
using jobs_test::model_of;

namespace {

// Llama 3 405B, arXiv 2407.21783 (July 2024), section 3.3.4: 419 unexpected interruptions in a snapshot of 54
// days on 16,384 GPUs, 8 a node.
constexpr double days = 54, interruptions = 419, nodes = 2048;
constexpr double node_mtbf_hours = days * 24 * nodes / interruptions;

JobDistribution llama3(double interval_min, double write_s, double detect_min, double restart_min) {
    jobs::JobModel model = model_of({427'000, 10, node_mtbf_hours, std::int64_t(interval_min * 6), write_s,
                                     restart_min * 60, int(nodes)});
    model.failures->detect = seconds(detect_min * 60);
    return jobs::simulate_job(model, {.runs = 2000, .seed = 1});
}

}  // namespace

TEST_CASE(
    "Llama 3's more than 90 % effective training time needs less than 19 minutes lost an interruption") {
    // 54 d / 419 = 3.09 h between interruptions: a tenth of them is 18.6 min for detection, restart and the
    // work since the last checkpoint. The paper gives none of these; any such division of 15 min meets it.
    for (const auto& [interval, detect, restart] :
         {std::tuple(10.0, 5.0, 5.0), {4.0, 3.0, 10.0}, {20.0, 1.0, 4.0}}) {
        const JobDistribution d = llama3(interval, 3, detect, restart);
        INFO("checkpoints every " << interval << " min, detected after " << detect << ", restarted in "
                                  << restart);
        CHECK(d.goodput.mean > 0.90);
        CHECK(d.goodput.p10 > 0.90);
        CHECK(d.goodput.mean < 0.95);
        // The count of the paper lies within the middle 80 % of ours.
        CHECK(d.interruptions.p10 < interruptions);
        CHECK(d.interruptions.p90 > interruptions);
        CHECK(d.hours.mean == Approx(days * 24).epsilon(0.03));
    }
    // And it can fail: half an hour each does not.
    CHECK(llama3(30, 3, 5, 10).goodput.mean < 0.90);
}

TEST_CASE("MegaScale's recovery keeps more than 90 % effective training time") {
    // arXiv 2402.15627 (February 2024), section 6.3: 12,288 GPUs, over 100 repairs and recoveries in a run of
    // several weeks, detection and diagnosis in less than 10 minutes on average, caught up with the progress
    // before the crash within 15 minutes, over 90 % effective training time. Three weeks are the hardest
    // "several".
    constexpr double weeks = 3, recoveries = 100;
    jobs::JobModel model = model_of({181'440, 10, weeks * 7 * 24 * 1536 / recoveries, 180, 5, 0, 1536});
    model.failures->detect = seconds(600);
    // Caught up within 15 min: load and 10 min or so of lost work on average, with checkpoints every 20 min.
    model.checkpointing->every = 120;
    model.failures->restart = seconds(300);
    const JobDistribution d = jobs::simulate_job(model, {.runs = 2000, .seed = 1});
    CHECK((d.lost_hours + d.restarting_hours) / d.failures_mean == Approx(15.0 / 60).epsilon(0.05));
    CHECK(d.goodput.p10 > 0.90);
}

TEST_CASE("BLOOM's failures cost little, as its authors say, with a checkpoint every three hours") {
    // arXiv 2211.05100 (November 2022): 48 nodes of 8 A100, 1 to 2 GPU failures a week on average, a
    // checkpoint every three hours, spare nodes that stepped in: no significant effect on throughput.
    for (double failures_a_week : {1.0, 2.0}) {
        jobs::JobModel model = model_of({86'400, 105, 7 * 24 * 48 / failures_a_week, 103, 40, 1800, 48});
        const JobDistribution d = jobs::simulate_job(model, {.runs = 1000, .seed = 1});
        const double weeks = d.hours.mean / (7 * 24);
        CHECK(d.interruptions.mean == Approx(failures_a_week * weeks).epsilon(0.05));
        CHECK(d.lost_hours / d.interruptions.mean == Approx(1.5).epsilon(0.05));  // half of an interval
        CHECK(d.goodput.mean > 0.97);
    }
}

TEST_CASE("a checkpoint of BLOOM has the bytes that BigScience published") {
    // bigscience.notion.site, BigScience 176B Model (2022): "only the bf16 weights are 329GB, the full
    // checkpoint with optimizer states is 2.3TB". Its GB are GiB: 176.2 billion bf16 weights are 328.3 GiB.
    core::Diagnostics diagnostics;
    core::Value description = core::Value::table();
    description["name"] = "bloom-176b";
    const auto graph = model::load_model(description, {}, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(graph.has_value());
    schedule::Plan plan;
    plan.precision = {};  // bf16 with fp32 masters
    const core::Bytes full = jobs::checkpoint_bytes(*graph, plan);
    const double tebibytes = full.value / std::pow(1024, 4);
    CHECK(tebibytes == Approx(2.3).epsilon(0.03));
    CHECK(core::to_gibibytes(full) * 2 / 14 == Approx(329).epsilon(0.005));
}
