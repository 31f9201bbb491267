// The answer of `smplan --objective expected-cost|expected-time`.
#pragma once

#include <iosfwd>

#include "apps/smplan/offers/offer_options.h"
#include "apps/smplan/plan/question.h"

namespace apps {

// Shows the offers and writes the files that are asked for; an exit code: no_plan without an offer that meets
// the goals.
int show_offers(const Question& question, const OfferRequest& request, bool as_json, std::ostream& out,
                std::ostream& err);

}  // namespace apps
