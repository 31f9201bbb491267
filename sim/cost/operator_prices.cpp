#include "sim/cost/operator_prices.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/index/integers.h"
#include "model/model_fwd.h"

namespace sim {

ComputePrice& ComputePrice::operator+=(const ComputePrice& other) {
    device += other.device;
    host += other.host;
    blocked += other.blocked;
    flops += other.flops;
    return *this;
}

OperatorPrices::OperatorPrices(const std::vector<ComputePrice>& prices,
                               const std::vector<std::int32_t>& place_of)
    : sums_(1) {
    sums_.reserve(place_of.size() + 1);
    for (const std::int32_t place : place_of) {
        ComputePrice sum = sums_.back();
        sums_.push_back(sum += prices[place]);
    }
}

OperatorPrices::OperatorPrices(std::vector<ComputePrice> prices, Places places)
    : prices_(std::move(prices)), places_(std::move(places)) {
    prices_.shrink_to_fit();  // searches keep thousands
}

OperatorPrices::Places OperatorPrices::places(const std::vector<std::int32_t>& place_of) {
    constexpr std::int32_t most = std::numeric_limits<std::uint8_t>::max();
    if (std::any_of(place_of.begin(), place_of.end(), [](std::int32_t place) { return place > most; }))
        return nullptr;
    return std::make_shared<const std::vector<std::uint8_t>>(place_of.begin(), place_of.end());
}

ComputePrice OperatorPrices::between(model::OperatorRange range) const {
    if (!places_) {
        const ComputePrice &low = sums_[range.begin], &high = sums_[range.end];
        return {high.device - low.device, high.host - low.host, high.blocked - low.blocked,
                high.flops - low.flops};
    }
    ComputePrice sum;
    for (std::int32_t o = range.begin; o < range.end; ++o) sum += prices_[(*places_)[o]];
    return sum;
}

}  // namespace sim
