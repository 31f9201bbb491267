// Ways to buy a training, held against prices, closed forms and each other.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "cluster/profile/supply.h"
#include "core/diagnostics.h"
#include "core/document.h"
#include "core/random.h"
#include "jobs/checkpoint_search.h"
#include "jobs/closed_form.h"
#include "jobs/offer/offer.h"
#include "jobs/offer/offer_front.h"
#include "sim/scenario.h"

using core::hours;
using core::seconds;
using jobs::Purchase;

namespace {

constexpr double p4d_on_demand = 21.957642, p4d_spot = 10.2, p4d_block = 14.75;  // USD/h, of its profile

sim::Scenario planned(const std::string& instance = "p4d.24xlarge", int nodes = 2) {
    const std::string text = "version = 1\n[model]\nname = \"gpt2\"\n[cluster]\ninstance = \"" + instance +
                             "\"\nnodes = " + std::to_string(nodes) +
                             "\n[plan]\nglobal_batch = 64\ndata_parallel = 16\nmicro_batch = 2\n";
    core::Diagnostics diagnostics;
    const auto document = core::parse_toml(text, "job.toml", diagnostics);
    REQUIRE(document.has_value());
    auto scenario = sim::read_scenario(*document, "job.toml", diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(scenario.has_value());
    return std::move(*scenario);
}

// Steps of 10 s on two nodes of which one fails every `node_mtbf_hours`.
jobs::OfferTerms terms_of(std::int64_t steps, double node_mtbf_hours) {
    jobs::OfferTerms terms;
    terms.job = jobs::published_terms();
    terms.job.steps = steps;
    terms.job.failures->node_mtbf = hours(node_mtbf_hours);
    terms.job.simulation = {.runs = 4000, .seed = 3};
    return terms;
}

std::variant<jobs::Offer, jobs::NotOffered> made(const sim::Scenario& scenario, Purchase purchase,
                                                 const jobs::OfferTerms& terms,
                                                 std::optional<core::DollarsPerSecond> price = {}) {
    core::Diagnostics diagnostics;
    const cluster::Supply supply = cluster::supply_of(scenario.cluster.instance, diagnostics);
    auto result = jobs::make_offer(scenario, seconds(10), purchase, price, supply, terms, diagnostics);
    INFO(core::format(diagnostics));
    REQUIRE(result.has_value());
    return std::move(*result);
}

jobs::Offer offered(const sim::Scenario& scenario, Purchase purchase, const jobs::OfferTerms& terms,
                    std::optional<core::DollarsPerSecond> price = {}) {
    auto result = made(scenario, purchase, terms, price);
    REQUIRE(std::holds_alternative<jobs::Offer>(result));
    return std::get<jobs::Offer>(std::move(result));
}

}  // namespace

TEST_CASE("an offer on demand takes what Daly's formula says and costs nodes times price times time") {
    const jobs::OfferTerms terms = terms_of(40'000, 500);
    const jobs::Offer offer = offered(planned(), Purchase::on_demand, terms);
    REQUIRE(offer.model.checkpointing.has_value());
    const double interval = 10.0 * double(offer.model.checkpointing->every);
    const core::Seconds want =
        jobs::expected_time({seconds(400'000), seconds(interval), offer.model.checkpointing->blocking,
                             hours(250), terms.job.failures->restart, terms.job.failures->detect});
    CHECK(offer.distribution.hours.mean == Approx(want / hours(1)).epsilon(0.01));
    // Bills are of whole seconds, and of 2 nodes.
    CHECK(offer.distribution.usd->mean ==
          Approx(2 * p4d_on_demand * offer.distribution.hours.mean).epsilon(1e-4));
    // 16 boards of 400 W (profile of the A100) for as long.
    REQUIRE(offer.kilowatt_hours.has_value());
    CHECK(*offer.kilowatt_hours == Approx(16 * 0.4 * offer.distribution.hours.mean));
}

TEST_CASE("an offer writes checkpoints as often as is best") {
    const jobs::Offer offer = offered(planned(), Purchase::on_demand, terms_of(40'000, 100));
    const auto best = jobs::find_best_interval(offer.model, {.runs = 4000, .seed = 3});
    REQUIRE(best.has_value());
    CHECK(best->hours_mean_given <= best->hours_mean * 1.003);
    jobs::OfferTerms given = terms_of(40'000, 100);
    given.chooses_interval = false;
    given.job.checkpoint->every = 4000;
    const jobs::Offer kept = offered(planned(), Purchase::on_demand, given);
    CHECK(kept.model.checkpointing->every == 4000);
    CHECK(kept.distribution.hours.mean > offer.distribution.hours.mean);
}

TEST_CASE("spot is paid at its price and not while there is no capacity, and takes longer") {
    jobs::OfferTerms terms = terms_of(40'000, 500);
    terms.job.spot.emplace();
    terms.job.spot->node_mean_time = hours(100);
    terms.job.spot->wait = hours(1);
    const jobs::Offer spot = offered(planned(), Purchase::spot, terms);
    const jobs::Offer on_demand = offered(planned(), Purchase::on_demand, terms);
    CHECK(spot.distribution.hours.mean > on_demand.distribution.hours.mean);
    CHECK(on_demand.distribution.waiting_hours == 0);
    const double held = spot.distribution.hours.mean - spot.distribution.waiting_hours;
    CHECK(spot.distribution.waiting_hours > 1);
    CHECK(spot.distribution.usd->mean == Approx(2 * p4d_spot * held).epsilon(1e-4));
}

TEST_CASE("without a [job.spot] reclaims are the profile's class") {
    const jobs::Offer offer = offered(planned(), Purchase::spot, terms_of(40'000, 500));
    REQUIRE(offer.model.spot.has_value());
    // The middle of 10 to 15 % within 30 days: -30 d / ln(1 - 0.125).
    CHECK(offer.model.spot->node_mean_time / hours(1) == Approx(-720 / std::log(0.875)));
    CHECK(offer.model.spot->notice == seconds(120));
}

TEST_CASE("a capacity block is paid by whole days, beyond two weeks by whole weeks") {
    // 40,000 steps of 10 s are 4.63 days, 130,000 are 15.05 days; nothing fails.
    for (const auto& [steps, days] : {std::pair<std::int64_t, int>(40'000, 5), {130'000, 21}, {1'000, 1}}) {
        jobs::OfferTerms terms = terms_of(steps, 500);
        terms.job.failures.reset();
        const jobs::Offer offer = offered(planned(), Purchase::capacity_block, terms);
        CHECK(offer.distribution.usd->mean == Approx(2 * p4d_block * 24 * days));
    }
    jobs::OfferTerms long_terms = terms_of(2'000'000, 500);  // 231 days, and blocks last 182
    CHECK(std::holds_alternative<jobs::NotOffered>(made(planned(), Purchase::capacity_block, long_terms)));
}

TEST_CASE("what has no price is not offered, unless the price is given") {
    const jobs::OfferTerms terms = terms_of(1000, 500);
    CHECK(std::holds_alternative<jobs::NotOffered>(made(planned(), Purchase::reserved, terms)));
    const jobs::Offer offer = offered(planned(), Purchase::reserved, terms, core::dollars_per_hour(12));
    CHECK(offer.distribution.usd->mean == Approx(2 * 12 * offer.distribution.hours.mean).epsilon(1e-3));
    // No Spot Instance Advisor class of p6-b200 was found.
    CHECK(std::holds_alternative<jobs::NotOffered>(
        made(planned("p6-b200.48xlarge"), Purchase::spot, terms, core::dollars_per_hour(50))));
}

TEST_CASE("more time and more money never lessen the chance, and risk is what is left of it") {
    jobs::OfferTerms terms = terms_of(40'000, 30);
    const jobs::Offer free = offered(planned(), Purchase::on_demand, terms);
    CHECK_FALSE(jobs::chance_of(free).has_value());
    CHECK(jobs::risk_of(free) > 0);
    double before = 0;
    for (const double share : {0.9, 0.98, 1.0, 1.02, 1.2}) {
        terms.goals.finish_by = hours(free.distribution.hours.p50 * share);
        terms.goals.budget = core::Dollars(free.distribution.usd->p50 * share);
        const jobs::Offer offer = offered(planned(), Purchase::on_demand, terms);
        REQUIRE(jobs::chance_of(offer).has_value());
        CHECK(*jobs::chance_of(offer) >= before);
        CHECK(jobs::risk_of(offer) == 1 - *jobs::chance_of(offer));
        before = *jobs::chance_of(offer);
    }
    CHECK(before == 1);
}

TEST_CASE("no offer of the front is dominated, and every other one is by one of the front") {
    core::Random random(5);
    for (int round = 0; round < 200; ++round) {
        std::vector<jobs::OfferFigures> offers;
        for (int i = 0; i < 30; ++i)  // few values, so that ties occur
            offers.push_back({std::floor(random.uniform() * 6), std::floor(random.uniform() * 6),
                              std::floor(random.uniform() * 3)});
        const std::vector<bool> front = jobs::on_front(offers);
        const auto dominates = [](const jobs::OfferFigures& a, const jobs::OfferFigures& b) {
            return a.usd <= b.usd && a.hours <= b.hours && a.risk <= b.risk &&
                   (a.usd < b.usd || a.hours < b.hours || a.risk < b.risk);
        };
        for (std::size_t i = 0; i < offers.size(); ++i) {
            bool by_front = false;
            for (std::size_t j = 0; j < offers.size(); ++j)
                by_front = by_front || (front[j] && dominates(offers[j], offers[i]));
            CHECK(by_front == !front[i]);
        }
    }
}
