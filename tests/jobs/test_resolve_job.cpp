#include <catch2/catch.hpp>
#include <cmath>

#include "core/diagnostics.h"
#include "core/document.h"
#include "jobs/checkpoint_search.h"
#include "jobs/closed_form.h"
#include "jobs/job_distribution.h"
#include "jobs/resolve_job.h"
#include "jobs/straggler.h"
#include "sim/evaluate.h"
#include "sim/scenario.h"
#include "tests/jobs/example_job.h"

using core::hours;
using core::seconds;

namespace {

struct Read {
    jobs::Job job;
    sim::Scenario scenario;
    core::Value table;
};

Read read(const std::string& job, const std::string& plan = "data_parallel = 16\nmicro_batch = 2\n",
          int nodes = 2) {
    const std::string text =
        "version = 1\n[model]\nname = \"gpt2\"\n[cluster]\ninstance = \"p4d.24xlarge\"\nnodes = " +
        std::to_string(nodes) + "\n[plan]\nglobal_batch = 64\n" + plan + "[job]\n" + job;
    core::Diagnostics diagnostics;
    const auto document = core::parse_toml(text, "job.toml", diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(document.has_value());
    auto scenario = sim::read_scenario(*document, "job.toml", diagnostics);
    auto read = jobs::read_job(*document->find("job"), diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(scenario.has_value());
    REQUIRE(read.has_value());
    return {*read, std::move(*scenario), *document->find("job")};
}

jobs::ResolvedJob resolved(const Read& input) {
    core::Diagnostics diagnostics;
    auto job = jobs::resolve_job(input.job, input.scenario, input.table, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(job.has_value());
    return std::move(*job);
}

sim::Evaluation evaluated(const sim::Scenario& scenario, const schedule::Plan& plan) {
    core::Diagnostics diagnostics;
    auto evaluation = sim::evaluate(scenario.graph, scenario.cluster, plan, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(evaluation.has_value());
    return std::move(*evaluation);
}

}  // namespace

TEST_CASE("durations of months, minutes and hours are read, and counts of tokens") {
    CHECK(core::parse_seconds("54d")->value == 54.0 * 86400);
    CHECK(core::parse_seconds("43800h")->value == 43800.0 * 3600);
    CHECK(core::parse_seconds("30min")->value == 1800);
    CHECK(jobs::parse_token_count("300B") == 300e9);
    CHECK(jobs::parse_token_count("1.4T") == 1.4e12);
    CHECK(jobs::parse_token_count("2e9") == 2e9);
    CHECK_FALSE(jobs::parse_token_count("300 B").has_value());
    CHECK_FALSE(jobs::parse_token_count("B").has_value());
    CHECK_FALSE(jobs::parse_token_count("infB").has_value());
}

TEST_CASE("what a job leaves open follows from its plan") {
    const Read input = read(
        "tokens = \"1M\"\nupload = { bandwidth = \"1GB/s\" }\n[job.evaluation]\nevery = 5\nbatches = 3\n"
        "[job.checkpoint]\nevery = 7\nstorage = { bandwidth = \"2GB/s\" }\n");
    const jobs::ResolvedJob job = resolved(input);
    CHECK(job.model.step == evaluated(input.scenario, input.scenario.file.plan).step_time);
    // 64 sequences of 1024 tokens a step: 1e6 / 65536 = 15.3, so 16 steps.
    CHECK(job.model.steps == 16);
    // bf16 parameters (2), fp32 masters (4) and two fp32 moments (8) of 124.4 million parameters.
    CHECK(job.checkpoint_bytes.value == Approx(14 * 124.44e6).epsilon(0.001));
    CHECK(job.model.checkpoint_write.value == Approx(job.checkpoint_bytes.value / 2e9));
    CHECK(job.model.upload.value == Approx(job.checkpoint_bytes.value / 1e9));
    // Forward alone is a good third of forward and backward, without the exchange of gradients.
    const double forward = job.model.evaluating->time.value / 3;
    CHECK(forward > 0.15 * job.model.step.value);
    CHECK(forward < 0.45 * job.model.step.value);
    // On demand: the profile's first price of that kind.
    CHECK(core::to_dollars_per_hour(*job.model.prices.node) == Approx(21.957642));
}

TEST_CASE("a job from a warm pool starts with its instances, and pays for keeping them") {
    const std::string rest = "image = { time = \"90s\" }\nstep_time = \"1s\"\nsteps = 3600\n";
    const jobs::JobModel cold = resolved(read(rest + "acquire = \"300s\"\n")).model;
    const jobs::JobModel warm =
        resolved(read(rest + "[job.warm_pool]\nstart = \"20s\"\nkeep_alive = \"30min\"\n")).model;
    CHECK(cold.undisturbed().value == 300 + 90 + 3600);
    CHECK(warm.undisturbed().value == 20 + 3600);
    const double rate = 2 * 21.957642 / 3600;  // USD a second of both nodes
    CHECK(jobs::simulate_run(cold, 1, 0).usd->value == Approx((90 + 3600) * rate));
    CHECK(jobs::simulate_run(warm, 1, 0).usd->value == Approx((3600 + 1800) * rate));
}

TEST_CASE("spot jobs pay the profile's spot price, and no price is unknown rather than guessed") {
    CHECK(core::to_dollars_per_hour(*resolved(read("steps = 10\npurchase = \"spot\"\n")).model.prices.node) ==
          Approx(10.2));
    const jobs::ResolvedJob reserved = resolved(read("steps = 10\npurchase = \"reserved\"\n"));
    CHECK_FALSE(reserved.model.prices.node.has_value());
    CHECK_FALSE(jobs::simulate_job(reserved.model, {.runs = 3}).usd.has_value());
}

TEST_CASE("the share of instances that is reclaimed in a month is what the simulation reclaims") {
    // 20 % of nodes within 30 days: after a month of one node's time 80 % of jobs are untouched.
    Read input = read("steps = 720\nstep_time = \"1h\"\n[job.spot]\nreclaimed_per_month = 0.2\n",
                      "data_parallel = 8\nmicro_batch = 2\n", 1);
    const jobs::JobModel model = resolved(input).model;
    int untouched = 0;
    constexpr int runs = 20'000;
    for (std::uint64_t run = 0; run < runs; ++run)
        untouched += jobs::simulate_run(model, 1, run).reclaims == 0;
    CHECK(double(untouched) / runs == Approx(0.8).margin(0.01));
}

TEST_CASE("the best interval by search is near Young's and Daly's, and no worse than the given one") {
    const jobs::JobModel model = jobs_test::model_of({50'000, 10, 500, 1000, 60, 600, 16});
    const auto best = jobs::find_best_interval(model, {.runs = 400, .seed = 3});
    REQUIRE(best.has_value());
    const double mtbf = 500.0 * 3600 / 16;
    CHECK(best->young->value == Approx(std::sqrt(2 * 60 * mtbf)));
    CHECK(best->hours_mean <= best->hours_mean_given);
    // The curve is flat: what counts is the time, held against Daly's at his own optimum.
    const auto at = [&](core::Seconds interval) {
        return jobs::expected_time(
            {seconds(500'000), interval, seconds(60), seconds(mtbf), seconds(600), {}});
    };
    CHECK(at(best->interval) / at(*best->daly) == Approx(1).epsilon(0.002));
    for (double factor : {0.5, 0.9, 1.1, 2.0}) CHECK(at(*best->daly) <= at(*best->daly * factor) * 1.0001);
}

TEST_CASE("one slow device of a data-parallel plan slows the step as if all were slow") {
    const Read input = read("steps = 10\n", "data_parallel = 8\nmicro_batch = 8\n", 1);
    core::Diagnostics diagnostics;
    jobs::StragglerRule rule;
    for (double speed : {1.0, 0.8, 0.5}) {
        rule.device_speed = speed;
        const auto effect = jobs::straggler_effect(input.scenario, rule, diagnostics);
        REQUIRE(effect.has_value());
        REQUIRE(effect->places.size() == 1);
        if (speed == 1) CHECK(effect->worst.ratio == 1);
        // Everyone waits for it: compute takes 1 / speed; what communication adds stays.
        CHECK(effect->worst.ratio <= 1 / speed + 1e-9);
        CHECK(effect->worst.ratio >= 1 + 0.7 * (1 / speed - 1));
    }
}

TEST_CASE(
    "a slow device costs most in the pipeline stage that has most to do, and a slow network costs where it "
    "is used") {
    const Read input = read("steps = 10\n", "pipeline_parallel = 4\ndata_parallel = 4\nmicro_batch = 2\n");
    core::Diagnostics diagnostics;
    jobs::StragglerRule device, network;
    device.device_speed = 0.5;
    network.network_speed = 0.25;
    const auto slow_device = jobs::straggler_effect(input.scenario, device, diagnostics);
    REQUIRE(slow_device.has_value());
    CHECK(slow_device->places.size() == 4);
    for (const jobs::StragglerPlace& place : slow_device->places) {
        CHECK(place.ratio >= 1);
        CHECK(place.ratio < 2.0);
        CHECK(slow_device->worst.ratio >= place.ratio);
    }
    // The last stage has the head, which is as much work as five of the blocks: the others have time to wait.
    CHECK(slow_device->worst.pipeline == 3);
    CHECK(slow_device->worst.ratio > 1.2);
    const auto slow_network = jobs::straggler_effect(input.scenario, network, diagnostics);
    REQUIRE(slow_network.has_value());
    CHECK(slow_network->worst.ratio > 1);
    CHECK(slow_network->worst.ratio < 4);
}

TEST_CASE("the slowest of many ranks with normal steps is that of order statistics") {
    // E of the greatest of two standard normals is 1 / sqrt(pi), of three 3 / (2 sqrt(pi)); its variance for
    // two is 1 - 1 / pi.
    const double pi = std::acos(-1.0);
    CHECK(jobs::jitter_of(2, 0.1).mean == Approx(1 + 0.1 / std::sqrt(pi)).epsilon(1e-6));
    CHECK(jobs::jitter_of(3, 0.1).mean == Approx(1 + 0.1 * 1.5 / std::sqrt(pi)).epsilon(1e-6));
    CHECK(jobs::jitter_of(2, 0.1).deviation == Approx(0.1 * std::sqrt(1 - 1 / pi)).epsilon(1e-4));
    CHECK(jobs::jitter_of(1, 0.1).mean == 1);
    CHECK(jobs::jitter_of(16'384, 0.05).mean > jobs::jitter_of(8, 0.05).mean);
}

TEST_CASE("an elastic plan on fewer nodes keeps its batch: the busiest replica has more micro-batches") {
    const Read input = read(
        "steps = 1000\n[job.failures]\nnode_mtbf = \"100h\"\n[job.elastic]\nreplace = \"10h\"\nleast_nodes = "
        "1\n",
        "data_parallel = 32\nmicro_batch = 1\n", 4);
    const jobs::JobModel model = resolved(input).model;
    REQUIRE(model.step_of_nodes.size() == 5);
    CHECK(*model.step_of_nodes[4] == model.step);
    CHECK(*model.elastic->reconfigure == model.checkpoint_write);
    // 64 micro-batches over 24, 16 and 8 ranks: 3, 4 and 8 each instead of 2.
    for (const auto& [nodes, micro_batches] : {std::pair(3, 3), {2, 4}, {1, 8}}) {
        const double ratio = *model.step_of_nodes[std::size_t(nodes)] / model.step;
        CHECK(ratio > 1);
        CHECK(ratio <= micro_batches / 2.0 + 1e-9);
    }
}

TEST_CASE("with new plans on fewer nodes the better of both counts, and losing nodes is no gain") {
    // Four nodes of eight devices; pipeline 2 x tensor 8 needs two nodes for a replica, so that of three
    // nodes one idles unless there is a new plan.
    const Read input =
        read("steps = 10\n",
             "data_parallel = 2\ntensor_parallel = 4\npipeline_parallel = 4\nmicro_batch = 1\n", 4);
    core::Diagnostics diagnostics;
    const core::Seconds full = seconds(10);
    const double predicted = evaluated(input.scenario, input.scenario.file.plan).step_time.value;
    const auto kept = jobs::step_of_nodes(input.scenario, full, 1, diagnostics);
    const auto steps_with = [&](const jobs::PlanOnNodes& replan) {
        std::vector<std::string> told;
        auto steps = jobs::replanned_step_of_nodes(input.scenario, full, 1, replan, told, diagnostics);
        CHECK(told.empty() == (steps == kept));
        return steps;
    };
    // No plan: as without. A given step time of 10 s is `predicted` times 10 / predicted.
    CHECK(steps_with([](int) { return std::nullopt; }) == kept);
    const auto three = steps_with([&](int nodes) -> std::optional<jobs::ReducedPlan> {
        if (nodes != 3) return std::nullopt;
        return jobs::ReducedPlan{seconds(1.3 * predicted), "three"};
    });
    REQUIRE(three[3].has_value());
    CHECK(three[3]->value == Approx(13));
    CHECK(three[2] == kept[2]);
    CHECK(three[4] == full);
    // A plan for one node is one for three of which two idle, where no other is better.
    const auto one = steps_with([&](int nodes) -> std::optional<jobs::ReducedPlan> {
        if (nodes != 1) return std::nullopt;
        return jobs::ReducedPlan{seconds(1.1 * predicted), "one"};
    });
    for (const int n : {1, 2, 3}) CHECK(one[std::size_t(n)]->value == Approx(11));
    // One that beats the whole cluster's counts as equal.
    const auto better =
        steps_with([&](int) { return std::optional(jobs::ReducedPlan{seconds(0.5 * predicted), "better"}); });
    for (const int n : {1, 2, 3}) CHECK(*better[std::size_t(n)] == full);
    CHECK_FALSE(diagnostics.has_errors());
}

TEST_CASE("a command without a search refuses new plans on fewer nodes") {
    const Read input = read(
        "steps = 10\n[job.failures]\nnode_mtbf = \"10d\"\n[job.elastic]\nreplace = \"1h\"\nleast_nodes = "
        "1\nreplan = "
        "true\n");
    core::Diagnostics diagnostics;
    CHECK_FALSE(jobs::resolve_job(input.job, input.scenario, input.table, diagnostics).has_value());
    CHECK(diagnostics.has_errors());
}

TEST_CASE("going on with fewer nodes is sooner done than waiting, unless nodes are back at once") {
    jobs::JobModel rigid = jobs_test::model_of({20'000, 10, 200, 360, 30, 300, 4});
    jobs::JobModel elastic = rigid;
    constexpr double replace = 12;  // hours
    // Rigid: the restart waits for the node.
    rigid.failures->restart = hours(replace) + seconds(300);
    elastic.elastic = jobs::ElasticRule();
    elastic.elastic->replace = hours(replace);
    elastic.elastic->least_nodes = 1;
    elastic.step_of_nodes = {std::nullopt, seconds(40), seconds(20), seconds(40.0 / 3), seconds(10)};
    const jobs::JobDistribution waits = jobs::simulate_job(rigid, {.runs = 2000, .seed = 2});
    const jobs::JobDistribution goes_on = jobs::simulate_job(elastic, {.runs = 2000, .seed = 2});
    CHECK(goes_on.hours.mean < waits.hours.mean);
    CHECK(goes_on.reduced_hours > 0);
    // A node away for 12 hours costs a quarter of the work of 12 hours: 3 hours and a restart each.
    const double each = (goes_on.hours.mean - elastic.undisturbed().value / 3600) / goes_on.failures_mean;
    CHECK(each > 3);
    CHECK(each < 6);
    // A spare takes the place at once; no time is lost with fewer nodes but when two are away.
    elastic.elastic->spares = 4;
    const jobs::JobDistribution spared = jobs::simulate_job(elastic, {.runs = 2000, .seed = 2});
    CHECK(spared.hours.mean < goes_on.hours.mean);
    CHECK(spared.reduced_hours < 0.01 * goes_on.reduced_hours);
    // With all nodes needed it waits for the replacement, as the rigid one does.
    elastic.elastic->spares = 0;
    elastic.elastic->least_nodes = 4;
    const jobs::JobDistribution all = jobs::simulate_job(elastic, {.runs = 2000, .seed = 2});
    CHECK(all.hours.mean == Approx(waits.hours.mean).epsilon(0.02));
}
