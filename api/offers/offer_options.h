// What `smplan --objective expected-cost|expected-time` is asked beside the plan: ways to buy, what may go
// wrong, by when and for how much.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "api/options.h"
#include "core/diagnostics_fwd.h"
#include "core/units.h"
#include "jobs/job.h"
#include "jobs/offer/offer.h"

namespace api {

struct PriceOfKind {
    std::string instance;
    jobs::Purchase purchase = jobs::Purchase::on_demand;
    core::DollarsPerSecond price;  // of a node
};

struct OfferRequest {
    bool ranks_by_time = false;  // else by cost
    std::vector<jobs::Purchase> purchases;
    std::vector<PriceOfKind> prices;  // instead of the profiles'
    jobs::OfferTerms terms;
    double confidence = 0.9;  // share of the runs that must meet the goals
    double carbon = 0;        // kilograms of CO2 a kilowatt-hour
    bool shows_front_alone = false;
    std::optional<std::string> csv_path, picture_path;
    std::vector<std::string> assumptions;
};

// Words of --objective that ask for offers.
const std::vector<std::string>& offer_objectives();
bool wants_offers(const Options& options);
// Names of the options, each with a value.
const std::vector<std::string>& offer_option_names();
// Nothing where there are errors, or where no offers are asked for; options of offers are then errors.
std::optional<OfferRequest> read_offer_request(Options& options, core::Diagnostics& diagnostics);

}  // namespace api
