#include "jobs/closed_form.h"

#include <cmath>

#include "core/errors.h"

namespace jobs {

core::Seconds expected_time(const PeriodicCheckpoints& c) {
    // exp(x) - 1 without its rounding: intervals are short beside the MTBF.
    const double per_interval = std::expm1((c.interval + c.write) / c.mtbf);
    return (c.mtbf + c.detect) * (std::exp(c.restart / c.mtbf) * per_interval * (c.computing / c.interval));
}

core::Seconds young_interval(core::Seconds write, core::Seconds mtbf) {
    return core::seconds(std::sqrt(2 * write.value * mtbf.value));
}

core::Seconds daly_interval(core::Seconds write, core::Seconds mtbf) {
    const double share = write / (mtbf * 2.0);
    if (share >= 1) return mtbf;
    return young_interval(write, mtbf) * (1 + std::sqrt(share) / 3 + share / 9) - write;
}

double erlang_c(int servers, double load) {
    core::require(servers > 0 && load >= 0 && load < double(servers), "a queue that does not grow for ever");
    // Erlang's loss formula by its recurrence, which does not overflow: B(0) = 1, B(n) = a B / (n + a B).
    double loss = 1;
    for (int n = 1; n <= servers; ++n) loss = load * loss / (n + load * loss);
    return servers * loss / (servers - load * (1 - loss));
}

core::Seconds mean_wait(int servers, core::Seconds between_arrivals, core::Seconds service) {
    const double load = service / between_arrivals;
    return service * (erlang_c(servers, load) / (servers - load));
}

}  // namespace jobs
