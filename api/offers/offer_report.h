// Offers as text, JSON and CSV.
#pragma once

#include <string>

#include "api/offers/offers.h"
#include "core/value.h"

namespace api {

// "8 x p4d.24xlarge, spot"
std::string name_of(const Question& question, const Offers& offers, const OfferRow& row);
std::string text_of(const Question& question, const OfferRequest& request, const Offers& offers);
core::Value document_of(const Question& question, const OfferRequest& request, const Offers& offers);
// One row an offer, also those that miss the goals; an unknown figure is an empty cell.
std::string csv_of(const Question& question, const Offers& offers);

}  // namespace api
