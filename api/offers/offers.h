// `smplan --objective expected-cost|expected-time`: the best plan of every cluster, bought in every way, as
// whole trainings with what may go wrong.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "api/offers/offer_options.h"
#include "api/plan/question.h"
#include "core/diagnostics_fwd.h"
#include "jobs/offer/offer.h"
#include "planner/search.h"

namespace api {

struct OfferRow {
    std::size_t plan = 0;  // index into Offers::plans
    jobs::Offer offer;
    bool meets = true;  // the goals, with the confidence that is asked for
    bool is_on_front = false;
    std::optional<double> carbon_kg = {};
};

struct Offers {
    planner::SearchResult plans;  // the fastest of every cluster; its candidates are of all targets
    std::vector<sim::PredictionIntervals> intervals;
    std::vector<OfferRow> rows;            // those that meet the goals first, by what is asked for
    std::vector<std::string> not_offered;  // why, each once
    std::vector<std::string> assumptions;  // of the offers, each once
    std::size_t simulated = 0, searches = 0, proven = 0;
};

// On one cluster, bought in one way, the fastest plan is the cheapest as well: the price of a node does not
// depend on the plan, nor do the bytes of a checkpoint.
Offers find_offers(const Question& question, const OfferRequest& request, core::Diagnostics& diagnostics);

}  // namespace api
