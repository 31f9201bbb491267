// Until when a search may go on.
#pragma once

#include <chrono>
#include <optional>

#include "core/units.h"

namespace partition {

using Clock = std::chrono::steady_clock;

// The latest time point there is where nothing limits the search, or only something like centuries.
inline Clock::time_point deadline_after(Clock::time_point begin, std::optional<core::Seconds> time_limit) {
    const std::chrono::duration<double> most = Clock::time_point::max() - begin;
    if (!time_limit || time_limit->value >= 0.5 * most.count()) return Clock::time_point::max();
    return begin +
           std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(time_limit->value));
}

}  // namespace partition
