// One configuration for each node of a stage: the least time whose memory fits a device.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "core/units.h"

namespace partition {

class ConfigurationKnapsack {
public:
    struct Choice {
        core::Seconds time;
        core::Bytes memory;
        std::size_t index;  // of the node's configuration
    };

    // Of the next node; what another choice beats in time and memory is left out.
    void add(std::vector<Choice> choices);

    // Times of the linear relaxation and of its rounding, with the rounded choice of each node. Both
    // infinite: nothing fits.
    std::pair<core::Seconds, core::Seconds> bounds(core::Bytes limit,
                                                   std::vector<std::size_t>* chosen = nullptr) const;
    // The exact least time; infinite when nothing fits in less than `best`, a time known to be achievable.
    // Nothing when the frontier of partial choices grows too long.
    std::optional<core::Seconds> exact(core::Bytes limit, core::Seconds best,
                                       std::vector<std::size_t>* chosen = nullptr) const;

private:
    struct Step {
        double price, time, memory;  // seconds a byte; seconds lost, bytes won
        std::size_t node, from, to;
    };
    struct Relaxation {
        std::vector<Step> steps;      // by price
        std::vector<std::size_t> at;  // choice of each node before steps[next]
        std::size_t next = 0;         // the first step not taken whole
        double base = 0, excess = 0;  // time and memory above the limit before it
        double relaxed = 0, price = 0;
    };
    Relaxation relaxation(core::Bytes limit) const;

    std::vector<std::vector<Choice>> nodes_;  // each an efficient frontier: time rising, memory falling
};

}  // namespace partition
