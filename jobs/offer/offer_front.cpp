#include "jobs/offer/offer_front.h"

#include <algorithm>

namespace jobs {

namespace {

bool dominates(const OfferFigures& a, const OfferFigures& b) {
    const bool is_no_worse = a.usd <= b.usd && a.hours <= b.hours && a.risk <= b.risk;
    const bool is_better = a.usd < b.usd || a.hours < b.hours || a.risk < b.risk;
    return is_no_worse && is_better;
}

}  // namespace

std::vector<bool> on_front(const std::vector<OfferFigures>& offers) {
    std::vector<bool> result;
    result.reserve(offers.size());
    for (const OfferFigures& offer : offers)
        result.push_back(std::none_of(offers.begin(), offers.end(),
                                      [&](const OfferFigures& other) { return dominates(other, offer); }));
    return result;
}

}  // namespace jobs
