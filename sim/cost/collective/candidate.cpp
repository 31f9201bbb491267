#include "sim/cost/collective/candidate.h"

#include <algorithm>
#include <cmath>

namespace sim {

CommunicationTime time_of(const Candidate& candidate, core::Bytes bytes) {
    CommunicationTime time{candidate.latency, {}};
    double seconds_per_byte = candidate.seconds_per_byte;
    if (!candidate.reached.empty()) {
        constexpr double first_bytes = 64;  // payload of the table's first entry
        const double position = std::log2(std::max(1.0, bytes.value / first_bytes));
        if (position < static_cast<double>(candidate.reached.size()) - 1) {
            // Between the table's powers of two on a straight line, so that prices have no steps.
            const auto below = static_cast<std::size_t>(position);
            const double part = position - static_cast<double>(below);
            seconds_per_byte /= candidate.reached[below] * (1 - part) + candidate.reached[below + 1] * part;
        }
    }
    const double filled = bytes.value + candidate.fill_times * std::min(bytes.value, candidate.fill.value);
    time.streaming =
        core::Seconds(std::max(seconds_per_byte * filled, candidate.shared_seconds_per_byte * bytes.value));
    if (candidate.loop.value > 0)
        time.latency += candidate.loop_overhead * std::max(1.0, bytes.value / candidate.loop.value);
    return time;
}

}  // namespace sim
