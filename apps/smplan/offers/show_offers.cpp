#include "apps/smplan/offers/show_offers.h"

#include <algorithm>
#include <ostream>

#include <fmt/core.h>

#include "apps/command.h"
#include "apps/smplan/offers/offer_picture.h"
#include "apps/smplan/offers/offer_report.h"
#include "apps/smplan/offers/offers.h"
#include "apps/smplan/plan/answer.h"
#include "apps/smplan/plan/no_plan.h"
#include "core/diagnostics.h"
#include "core/document.h"

namespace apps {

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
    if (request.csv_path) files.push_back({*request.csv_path, csv_of(question, offers)});
    if (request.picture_path) files.push_back({*request.picture_path, picture_of(question, request, offers)});
    if (const std::optional<std::string>& path = question.request.out_path) {
        const planner::RankedPlan& best = offers.plans.plans[offers.rows.front().plan];
        files.push_back({*path, plan_text(question.request, question.graph, best,
                                          question.targets[best.candidate], *path)});
    }
    return files;
}

}  // namespace

int show_offers(const Question& question, const OfferRequest& request, bool as_json, std::ostream& out,
                std::ostream& err) {
    core::Diagnostics diagnostics;
    const Offers offers = find_offers(question, request, diagnostics);
    if (diagnostics.has_errors() && !offers.plans.plans.empty()) return show(diagnostics, as_json, out, err);
    if (offers.rows.empty() || !offers.rows.front().meets) {
        show(why_none(question, request, offers, diagnostics), as_json, out, err);
        return no_plan;
    }
    if (as_json) {
        out << core::to_json(document_of(question, request, offers)) << '\n';
    } else {
        show(diagnostics, false, out, err);
        out << text_of(question, request, offers);
    }
    const std::vector<OutputFile> files = files_of(question, request, offers);
    if (files.empty()) return good;
    const int code = write_outputs(files, err);
    if (code == good && !as_json)
        for (const OutputFile& file : files) out << fmt::format("  {} written\n", file.path);
    return code;
}

}  // namespace apps
