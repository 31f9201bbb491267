// Prices of the operators of a model in their order, summed over runs of them.
#pragma once

#include <cstdint>
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
    OperatorPrices() = default;
    // For many sums: one takes the same time over any run, with as much memory as there are operators.
    explicit OperatorPrices(const std::vector<ComputePrice>& of_operator);
    // For few sums of many models: equal prices are kept once. `first_like`: of each operator an earlier one
    // that most likely costs the same, or itself.
    OperatorPrices(const std::vector<ComputePrice>& of_operator, const std::vector<std::int32_t>& first_like);

    ComputePrice between(model::OperatorRange range) const;

private:
    std::vector<ComputePrice> sums_;    // of the operators before, or
    std::vector<ComputePrice> prices_;  // ... each once
    std::vector<std::uint8_t> which_;   // by operator
};

}  // namespace sim
