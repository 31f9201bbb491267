// The answer of `smplan --objective expected-cost|expected-time`.
#pragma once

#include "api/offers/offer_options.h"
#include "api/plan/question.h"
#include "api/reply.h"

namespace api {

// The offers and the files that are asked for, or no_plan where no offer meets the goals.
Reply offers_reply(const Question& question, const OfferRequest& request);

}  // namespace api
