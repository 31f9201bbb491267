// Prices of the operators of a model in their order, summed over runs of them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/units.h"
#include "model/model_fwd.h"

namespace sim {

// Work of one instruction. The device computes while the host dispatches kernels: the instruction lasts as
// long as the slower of the two, and then for the time in which the host blocks with nothing queued.
struct ComputePrice {
    core::Seconds device, host, blocked;
    core::Flops flops;
    core::Seconds time() const { return (device > host ? device : host) + blocked; }
    ComputePrice& operator+=(const ComputePrice& other);
    bool operator==(const ComputePrice&) const = default;
};

class OperatorPrices {
public:
    using Places = std::shared_ptr<const std::vector<std::uint8_t>>;  // by operator: of its price

    OperatorPrices() = default;
    // For many sums: one takes the same time over any run, with as much memory as there are operators.
    OperatorPrices(const std::vector<ComputePrice>& prices, const std::vector<std::int32_t>& place_of);
    // For few sums of many models: prices that operators share are kept once, places by all who share them.
    OperatorPrices(std::vector<ComputePrice> prices, Places places);
    // Null where there are so many that sums are to be kept instead.
    static Places places(const std::vector<std::int32_t>& place_of);

    ComputePrice between(model::OperatorRange range) const;

private:
    std::vector<ComputePrice> sums_;    // of the operators before, or
    std::vector<ComputePrice> prices_;  // ... each once
    Places places_;
};

}  // namespace sim
