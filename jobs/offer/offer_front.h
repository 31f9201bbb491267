// Which offers are worth looking at: those than which no other is better in expected cost, expected time or
// risk and no worse in the others.
#pragma once

#include <vector>

namespace jobs {

struct OfferFigures {
    double usd = 0, hours = 0;  // means
    double risk = 0;
};

// For each offer, is it on the front? Of equal ones all are.
std::vector<bool> on_front(const std::vector<OfferFigures>& offers);

}  // namespace jobs
