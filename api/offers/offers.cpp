#include "api/offers/offers.h"

#include <algorithm>

#include <fmt/core.h>

#include "api/plan/answer.h"
#include "api/plan/front.h"
#include "cluster/profile/supply.h"
#include "core/diagnostics.h"
#include "jobs/offer/offer_front.h"
#include "planner/explain.h"
#include "sim/scenario.h"

namespace api {

namespace {

void add_once(std::vector<std::string>& lines, const std::string& line) {
    if (std::find(lines.begin(), lines.end(), line) == lines.end()) lines.push_back(line);
}

// The fastest plan of every cluster.
void search_clusters(const Question& question, Offers& offers, core::Diagnostics& diagnostics) {
    const auto& [request, graph, targets] = question;
    const std::vector<std::vector<std::size_t>> clusters = by_cluster(targets);
    for (const std::vector<std::size_t>& members : clusters) {
        std::vector<planner::Target> some;
        for (const std::size_t i : members) some.push_back(targets[i]);
        planner::SearchRequest search = request.search;
        search.objective = planner::Objective::speed;
        search.keep = 1;
        search.unsearched.clear();
        search.time_limit = *search.time_limit / double(clusters.size());
        planner::SearchResult result = planner::search_plans(graph, some, search, diagnostics);
        offers.simulated += result.account.evaluated;
        ++offers.searches;
        offers.proven += result.account.is_proven_optimal;
        offers.plans.account = result.account;
        if (result.plans.empty()) {
            if (result.shortfall) offers.plans.shortfall = result.shortfall;
            add_once(offers.not_offered, fmt::format("no plan fits {} x {}", some.front().cluster.nodes,
                                                     some.front().cluster.instance.name));
            continue;
        }
        result.plans.front().candidate = members[result.plans.front().candidate];
        offers.plans.plans.push_back(std::move(result.plans.front()));
    }
}

std::optional<core::DollarsPerSecond> price_of(const OfferRequest& request, const std::string& instance,
                                               jobs::Purchase purchase) {
    for (const PriceOfKind& price : request.prices)
        if (price.instance == instance && price.purchase == purchase) return price.price;
    return std::nullopt;
}

void offer_plan(const Question& question, const OfferRequest& request, std::size_t index, Offers& offers,
                core::Diagnostics& diagnostics) {
    const planner::RankedPlan& ranked = offers.plans.plans[index];
    const cluster::Cluster& cluster = question.targets[ranked.candidate].cluster;
    sim::Scenario planned;
    planned.file.plan = ranked.plan;
    planned.graph = question.graph;
    planned.cluster = cluster;
    const cluster::Supply supply = cluster::supply_of(cluster.instance, diagnostics);
    if (!supply.board_watts)
        add_once(offers.assumptions,
                 fmt::format("the board power of {} is not known, nor its energy", cluster.instance.name));
    for (const jobs::Purchase purchase : request.purchases) {
        auto made = jobs::make_offer(planned, ranked.evaluation.step_time, purchase,
                                     price_of(request, cluster.instance.name, purchase), supply,
                                     request.terms, diagnostics);
        if (!made) return;
        if (const auto* no = std::get_if<jobs::NotOffered>(&*made)) {
            add_once(offers.not_offered, no->reason);
            continue;
        }
        OfferRow row{.plan = index, .offer = std::get<jobs::Offer>(std::move(*made))};
        for (const std::string& line : row.offer.assumptions) add_once(offers.assumptions, line);
        for (const std::string& line : row.offer.model.assumptions) add_once(offers.assumptions, line);
        row.meets = jobs::chance_of(row.offer).value_or(1) >= request.confidence;
        if (row.offer.kilowatt_hours) row.carbon_kg = *row.offer.kilowatt_hours * request.carbon;
        offers.rows.push_back(std::move(row));
    }
}

void rank(const OfferRequest& request, Offers& offers) {
    std::vector<jobs::OfferFigures> figures;
    for (const OfferRow& row : offers.rows)
        figures.push_back(
            {row.offer.distribution.usd->mean, row.offer.distribution.hours.mean, jobs::risk_of(row.offer)});
    const std::vector<bool> is_on_front = jobs::on_front(figures);
    for (std::size_t i = 0; i < offers.rows.size(); ++i) offers.rows[i].is_on_front = is_on_front[i];
    std::stable_sort(offers.rows.begin(), offers.rows.end(), [&](const OfferRow& a, const OfferRow& b) {
        if (a.meets != b.meets) return a.meets;
        const jobs::JobDistribution &of_a = a.offer.distribution, &of_b = b.offer.distribution;
        return request.ranks_by_time ? of_a.hours.mean < of_b.hours.mean : of_a.usd->mean < of_b.usd->mean;
    });
}

}  // namespace

Offers find_offers(const Question& question, const OfferRequest& request, core::Diagnostics& diagnostics) {
    Offers offers;
    search_clusters(question, offers, diagnostics);
    if (offers.plans.plans.empty()) return offers;
    offers.intervals = judge(offers.plans, question.graph, question.targets, question.request.posterior(),
                             question.request.search.threads);
    for (planner::RankedPlan& plan : offers.plans.plans) plan.bound_by = planner::bound_by(plan.evaluation);
    for (std::size_t i = 0; i < offers.plans.plans.size() && !diagnostics.has_errors(); ++i)
        offer_plan(question, request, i, offers, diagnostics);
    rank(request, offers);
    return offers;
}

}  // namespace api
