#include <catch2/catch.hpp>
#include <cmath>

#include "jobs/campaign/campaign.h"
#include "jobs/closed_form.h"

using core::seconds;
using jobs::Campaign;
using jobs::CampaignGroup;
using jobs::Spread;

namespace {

CampaignGroup group(std::int64_t count, double duration, double between) {
    CampaignGroup one;
    one.count = count;
    one.duration = seconds(duration);
    one.between_arrivals = seconds(between);
    return one;
}

Campaign pool(int nodes, std::vector<CampaignGroup> groups, std::int64_t runs = 1) {
    Campaign campaign;
    campaign.nodes = nodes;
    campaign.groups = std::move(groups);
    campaign.simulation.runs = runs;
    return campaign;
}

// Erlang's C by its sum, in logarithms: P(wait) = (a^c / c! c / (c - a)) / (sum a^k / k! + the same).
double erlang_c_by_sum(int servers, double load) {
    double below = 0;
    for (int k = 0; k < servers; ++k) below += std::exp(k * std::log(load) - std::lgamma(k + 1));
    const double all =
        std::exp(servers * std::log(load) - std::lgamma(servers + 1)) * servers / (servers - load);
    return all / (below + all);
}

}  // namespace

TEST_CASE("Erlang's C by recurrence is that by its sum") {
    for (int servers : {1, 2, 5, 20, 80})
        for (double use : {0.1, 0.5, 0.9, 0.99})
            CHECK(jobs::erlang_c(servers, servers * use) ==
                  Approx(erlang_c_by_sum(servers, servers * use)).epsilon(1e-9));
    CHECK(jobs::erlang_c(1, 0.7) == Approx(0.7));  // one server: busy with the probability of its load
}

TEST_CASE("exponential arrivals and durations wait as M/M/c says") {
    for (const auto& [servers, use] : {std::pair(1, 0.5), {3, 0.8}, {8, 0.7}}) {
        CampaignGroup jobs = group(40'000, 3600, 3600 / (servers * use));
        jobs.duration_spread = jobs.arrival_spread = Spread::exponential;
        Campaign campaign = pool(servers, {jobs}, 60);
        campaign.simulation.seed = 2;
        campaign.settle = 2000;
        const double load = servers * use;
        const double want = erlang_c_by_sum(servers, load) * 3600 / (servers - load);
        INFO(servers << " servers");
        CHECK(jobs::simulate_campaign(campaign).wait_s[0] == Approx(want).epsilon(0.03));
    }
}

TEST_CASE("exponential arrivals of equal jobs wait half as long at one server (Pollaczek, Khinchine)") {
    CampaignGroup jobs = group(40'000, 1000, 1000 / 0.8);
    jobs.arrival_spread = Spread::exponential;
    Campaign campaign = pool(1, {jobs}, 24);
    campaign.settle = 2000;
    // rho s / (2 (1 - rho)).
    CHECK(jobs::simulate_campaign(campaign).wait_s[0] == Approx(0.8 * 1000 / (2 * 0.2)).epsilon(0.03));
}

TEST_CASE("priorities at one server wait as Cobham says") {
    // Two classes of exponential jobs: W1 = R / (1 - r1), W2 = R / ((1 - r1)(1 - r1 - r2)) with R the mean
    // rest of a service that is met: (r1 + r2) s. A. Cobham, Operations Research 2 (1954).
    std::vector<CampaignGroup> groups = {group(30'000, 100, 400), group(30'000, 100, 200)};
    for (CampaignGroup& one : groups) one.duration_spread = one.arrival_spread = Spread::exponential;
    groups[0].priority = 1;
    groups[0].count = 15'000;  // both last as long
    Campaign campaign = pool(1, groups, 24);
    campaign.discipline = jobs::Discipline::priority;
    campaign.settle = 2000;
    const double rest = 0.75 * 100;
    const jobs::CampaignAnswer answer = jobs::simulate_campaign(campaign);
    CHECK(answer.wait_s[0] == Approx(rest / 0.75).epsilon(0.03));
    CHECK(answer.wait_s[1] == Approx(rest / (0.75 * 0.25)).epsilon(0.04));
}

TEST_CASE("equal jobs that are all there at the beginning are D/D/c: wave after wave") {
    // 10 jobs of 100 s on 4 nodes: waves begin at 0, 100, 200; waits 4 x 0, 4 x 100, 2 x 200.
    const jobs::CampaignRun run = jobs::simulate_campaign_run(pool(4, {group(10, 100, 0)}), 0);
    CHECK(run.makespan.value == 300);
    CHECK(run.wait[0].value == Approx((4 * 0 + 4 * 100 + 2 * 200) / 10.0));
    CHECK(run.busy.value == 1000);
}

TEST_CASE("arrivals no faster than the pool serves never wait") {
    const jobs::CampaignRun run = jobs::simulate_campaign_run(pool(4, {group(100, 100, 25)}), 0);
    CHECK(run.wait[0].value == 0);
    CHECK(run.makespan.value == 99 * 25 + 100);
}

TEST_CASE("a warm pool saves all cold starts but the first, and its idle nodes are paid") {
    // A job of 100 s every 160 s on one node. Cold: 60 s of start each, done exactly when the next one comes.
    Campaign campaign = pool(1, {group(10, 100, 160)});
    campaign.cold_start = seconds(60);
    const jobs::CampaignRun cold = jobs::simulate_campaign_run(campaign, 0);
    CHECK(cold.makespan.value == 9 * 160 + 160);
    CHECK(cold.warm_starts == 0);
    CHECK(cold.idle.value == 0);
    campaign.keep_alive = seconds(200);
    campaign.warm_start = seconds(5);
    const jobs::CampaignRun warm = jobs::simulate_campaign_run(campaign, 0);
    // The first ends at 160, the second starts at once; from then on a job ends 105 s after its arrival and
    // the node idles for 55 s, 8 times; after the last one it is kept for 200 s.
    CHECK(warm.warm_starts == 9);
    CHECK(warm.makespan.value == 9 * 160 + 105);
    CHECK(warm.busy.value == 100 + 9 * 105);
    CHECK(warm.idle.value == 8 * 55 + 200);
    campaign.keep_alive =
        seconds(30);  // too short for the gap: cold again, and 30 s each are paid for nothing
    const jobs::CampaignRun late = jobs::simulate_campaign_run(campaign, 0);
    CHECK(late.warm_starts < 9);
    CHECK(late.idle.value > 0);
}

TEST_CASE("a job of several nodes waits until all are free, and others wait behind it") {
    CampaignGroup small = group(2, 100, 0), large = group(1, 50, 0);
    large.nodes = 2;
    const jobs::CampaignRun run = jobs::simulate_campaign_run(pool(2, {small, large}), 0);
    CHECK(run.wait[0].value == 0);
    CHECK(run.wait[1].value == 100);
    CHECK(run.makespan.value == 150);
}

TEST_CASE("a campaign's answer does not depend on the number of threads") {
    CampaignGroup jobs = group(500, 3600, 3000);
    jobs.duration_spread = jobs.arrival_spread = Spread::exponential;
    Campaign campaign = pool(2, {jobs}, 50);
    campaign.simulation.threads = 1;
    const jobs::CampaignAnswer one = jobs::simulate_campaign(campaign);
    campaign.simulation.threads = 4;
    const jobs::CampaignAnswer four = jobs::simulate_campaign(campaign);
    CHECK(one.wait_s == four.wait_s);
    CHECK(one.makespan_hours.p90 == four.makespan_hours.p90);
}
