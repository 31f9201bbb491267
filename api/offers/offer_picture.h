// Offers as a picture: expected time against expected cost, the front joined, larger dots for more risk.
#pragma once

#include <string>

#include "api/offers/offers.h"

namespace api {

// An SVG document. Both axes begin at zero.
std::string picture_of(const Question& question, const OfferRequest& request, const Offers& offers);

}  // namespace api
