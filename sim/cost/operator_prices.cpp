#include "sim/cost/operator_prices.h"

#include <cstddef>
#include <limits>

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

OperatorPrices::OperatorPrices(const std::vector<ComputePrice>& of_operator) : sums_(1) {
    sums_.reserve(of_operator.size() + 1);
    for (const ComputePrice& price : of_operator) {
        ComputePrice sum = sums_.back();
        sums_.push_back(sum += price);
    }
}

OperatorPrices::OperatorPrices(const std::vector<ComputePrice>& of_operator,
                               const std::vector<std::int32_t>& first_like) {
    constexpr std::size_t most_kept = std::numeric_limits<std::uint8_t>::max();
    which_.reserve(of_operator.size());
    for (const std::int32_t o : core::indices(of_operator)) {
        const std::int32_t like = first_like[o];
        if (like < o && of_operator[like] == of_operator[o]) {
            which_.push_back(which_[like]);
            continue;
        }
        if (prices_.size() == most_kept) {
            *this = OperatorPrices(of_operator);
            return;
        }
        which_.push_back(core::narrow<std::uint8_t>(prices_.size()));
        prices_.push_back(of_operator[o]);
    }
    prices_.shrink_to_fit();  // searches keep thousands
}

ComputePrice OperatorPrices::between(model::OperatorRange range) const {
    if (which_.empty()) {
        const ComputePrice &low = sums_[range.begin], &high = sums_[range.end];
        return {high.device - low.device, high.host - low.host, high.blocked - low.blocked,
                high.flops - low.flops};
    }
    ComputePrice sum;
    for (std::int32_t o = range.begin; o < range.end; ++o) sum += prices_[which_[o]];
    return sum;
}

}  // namespace sim
