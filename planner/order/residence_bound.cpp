#include "planner/order/residence_bound.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

namespace planner {

namespace {

// Amounts that are all multiples of one unit fill a limit only up to a multiple of it. Nothing where there is
// no such unit.
std::optional<double> common_unit(const std::vector<double>& amounts) {
    double least = std::numeric_limits<double>::infinity();
    for (const double amount : amounts)
        if (std::abs(amount) > 0) least = std::min(least, std::abs(amount));
    // Half, third, ... of the least amount; finer units gain nothing worth having.
    constexpr int most_parts = 4;
    for (int parts = 1; parts <= most_parts; ++parts) {
        const double unit = least / parts;
        if (std::all_of(amounts.begin(), amounts.end(), [&](double amount) {
                return std::abs(amount / unit - std::round(amount / unit)) < rounding;
            }))
            return unit;
    }
    return std::nullopt;
}

}  // namespace

double residence_bound(const OrderProblem& problem, int rank) {
    if (!problem.memory_limit) return 0;
    const int stages = problem.ranks * problem.chunks;
    const auto cost = [&](int s) -> const sim::StageCost& { return problem.stages[s]; };
    const auto hop = [&](int s) {
        return problem.rank_of(s) == problem.rank_of(s + 1) ? 0.0 : problem.transfer.value;
    };
    // From the end of a stage's forward to the start of its backward: through all later stages and back.
    std::vector<double> away(stages, 0);
    for (int s = stages - 2; s >= 0; --s)
        away[s] = away[s + 1] + cost(s + 1).forward.value + cost(s + 1).backward_input.value + 2 * hop(s);

    double area = 0, most_at_once = 0, fills = 0, least_release = 0, drains = 0;
    std::vector<double> amounts;
    for (int chunk = 0; chunk < problem.chunks; ++chunk) {
        const int s = problem.stage_of(rank, chunk);
        const double forward = cost(s).memory_forward.value, input = cost(s).memory_backward_input.value,
                     weight = cost(s).memory_backward_weight.value;
        const double f = cost(s).forward.value, i = cost(s).backward_input.value,
                     w = cost(s).backward_weight.value;
        // Forwards take, weights give back, all of it; what else there may be is not worth a case.
        if (forward < 0 || weight > 0 || forward + input < 0 ||
            std::abs(forward + input + weight) > rounding * forward || f <= 0 || i <= 0 || w <= 0)
            return 0;
        amounts.insert(amounts.end(), {forward, input, weight});
        const double during_input = input > 0 ? forward + input : forward;
        area += problem.micro_batches * (forward * (f + away[s]) + during_input * i + (forward + input) * w);
        most_at_once = std::max({most_at_once, forward, input});
        fills = std::max({fills, forward / f, input / i});
        least_release = std::max({least_release, -input, -weight});
        drains = std::max({drains, -input / i, -weight / w});
    }
    if (area <= 0 || drains <= 0) return 0;  // nothing is held
    double limit = problem.greatest_memory();
    if (const std::optional<double> unit = common_unit(amounts))
        limit = std::floor(limit / *unit + rounding) * *unit;
    if (limit <= 0) return 0;
    // Memory after time x is at most most_at_once + fills x; `x` before the end at most least_release +
    // drains x.
    const double rise = std::max(0.0, limit - most_at_once) / fills,
                 fall = std::max(0.0, limit - least_release) / drains;
    constexpr double triangle = 0.5;  // area of a triangle over its base times its height
    const double lost_rising = triangle * rise * std::max(0.0, limit - most_at_once),
                 lost_falling = triangle * fall * std::max(0.0, limit - least_release);
    // Each loss counts where the span has room for it, both where it has room for both.
    double bound = area / limit;
    bound = std::max(bound, std::min((area + lost_rising) / limit, rise));
    if (bound >= rise) bound = std::max(bound, (area + lost_rising) / limit);
    bound = std::max(bound, std::min((area + lost_rising + lost_falling) / limit, rise + fall));
    if (bound >= rise + fall) bound = std::max(bound, (area + lost_rising + lost_falling) / limit);
    return bound;
}

}  // namespace planner
