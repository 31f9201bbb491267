// Until when a search may go on.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <utility>

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

// When a search ends with its best so far: at a time, or as soon as its caller wants it to.
class Deadline {
public:
    Deadline() = default;  // never
    explicit Deadline(Clock::time_point latest, std::function<bool()> is_stopped = {})
        : latest_(latest), is_stopped_(std::move(is_stopped)) {}
    // `is_stopped` is asked from any thread, by several at once; once true it stays so.
    Deadline(Clock::time_point begin, std::optional<core::Seconds> time_limit,
             std::function<bool()> is_stopped)
        : Deadline(deadline_after(begin, time_limit), std::move(is_stopped)) {}

    bool has_passed() const { return (is_stopped_ && is_stopped_()) || Clock::now() > latest_; }

private:
    Clock::time_point latest_ = Clock::time_point::max();
    std::function<bool()> is_stopped_;
};

}  // namespace partition
