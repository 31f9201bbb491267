#include "api/offers/show_offers.h"

#include <algorithm>
#include <utility>

#include <fmt/core.h>

#include "api/offers/offer_picture.h"
#include "api/offers/offer_report.h"
#include "api/offers/offers.h"
#include "api/plan/answer.h"
#include "api/plan/no_plan.h"
#include "core/diagnostics.h"

namespace api {

namespace {

// No offer at all, or none that meets the goals.
core::Diagnostics why_none(const Question& question, const OfferRequest& request, const Offers& offers,
                           const core::Diagnostics& diagnostics) {
    if (offers.plans.plans.empty())
        return why_no_plan(question.request, question.graph, question.targets, offers.plans, diagnostics);
    core::Diagnostics reasons = diagnostics;
    if (offers.rows.empty()) {
        std::string all;
        for (const std::string& line : offers.not_offered) all += (all.empty() ? "" : "; ") + line;
        reasons.error({}, "offers", "nothing can be bought: " + all,
                      "give a price (--price INSTANCE:KIND=USD), or other instance types");
        return reasons;
    }
    const auto best =
        std::max_element(offers.rows.begin(), offers.rows.end(), [](const OfferRow& a, const OfferRow& b) {
            return jobs::chance_of(a.offer).value_or(0) < jobs::chance_of(b.offer).value_or(0);
        });
    const cluster::Cluster& cluster = question.targets[offers.plans.plans[best->plan].candidate].cluster;
    const jobs::JobDistribution& distribution = best->offer.distribution;
    reasons.error(
        {}, "offers",
        fmt::format("no offer meets the goals in {:g} % of the runs: the best, {} x {} {}, does in "
                    "{:.1f} %, with {:.1f} h and {:.0f} USD (90 % quantiles)",
                    100 * request.confidence, cluster.nodes, cluster.instance.name,
                    jobs::name_of(best->offer.purchase), 100 * jobs::chance_of(best->offer).value_or(0),
                    distribution.hours.p90, distribution.usd->p90),
        "allow more time or money, less confidence, or more nodes (--max-nodes)");
    return reasons;
}

std::vector<OutputFile> files_of(const Question& question, const OfferRequest& request,
                                 const Offers& offers) {
    std::vector<OutputFile> files;
    const auto add = [&](const std::string& path, std::string content) {
        files.push_back({path, std::move(content)});
    };
    if (request.csv_path) add(*request.csv_path, csv_of(question, offers));
    if (request.picture_path) add(*request.picture_path, picture_of(question, request, offers));
    if (const std::optional<std::string>& path = question.request.out_path) {
        const planner::RankedPlan& best = offers.plans.plans[offers.rows.front().plan];
        add(*path,
            plan_text(question.request, question.graph, best, question.targets[best.candidate], *path));
    }
    return files;
}

}  // namespace

Reply offers_reply(const Question& question, const OfferRequest& request) {
    core::Diagnostics diagnostics;
    const Offers offers = find_offers(question, request, diagnostics);
    if (diagnostics.has_errors() && !offers.plans.plans.empty()) return refusal(std::move(diagnostics));
    if (offers.rows.empty() || !offers.rows.front().meets)
        return refusal(why_none(question, request, offers, diagnostics), Outcome::no_plan);
    return {.document = document_of(question, request, offers),
            .text = text_of(question, request, offers),
            .diagnostics = std::move(diagnostics),
            .files = files_of(question, request, offers)};
}

}  // namespace api
