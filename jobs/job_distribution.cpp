#include "jobs/job_distribution.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>

#include "core/errors.h"
#include "core/parallel.h"

namespace jobs {

namespace {

constexpr double seconds_per_hour = 3600;

// The differences to the first value are summed, so that equal values have that value as their mean.
template <class Get>
double mean_of(const std::vector<JobRun>& runs, Get get) {
    const double first = get(runs.front());
    double sum = 0;
    for (const JobRun& run : runs) sum += get(run) - first;
    return first + sum / double(runs.size());
}

template <class Get>
Quantiles quantiles_of(const std::vector<JobRun>& runs, Get get) {
    std::vector<double> values;
    values.reserve(runs.size());
    for (const JobRun& run : runs) values.push_back(get(run));
    return jobs::quantiles_of(std::move(values));
}

template <class Meets>
double share_of(const std::vector<JobRun>& runs, Meets meets) {
    return double(std::count_if(runs.begin(), runs.end(), meets)) / double(runs.size());
}

Chances chances_of(const std::vector<JobRun>& runs, const Goals& goals) {
    Chances chances;
    const bool has_price = runs.front().usd.has_value();
    const auto in_time = [&](const JobRun& run) { return run.total <= *goals.finish_by; };
    const auto within = [&](const JobRun& run) { return *run.usd <= *goals.budget; };
    if (goals.finish_by) chances.in_time = share_of(runs, in_time);
    if (goals.budget && has_price) chances.within_budget = share_of(runs, within);
    if (goals.finish_by && goals.budget && has_price)
        chances.both = share_of(runs, [&](const JobRun& run) { return in_time(run) && within(run); });
    return chances;
}

std::uint64_t median_of(const std::vector<JobRun>& runs) {
    std::vector<std::uint64_t> order(runs.size());
    std::iota(order.begin(), order.end(), std::uint64_t(0));
    const auto middle = order.begin() + (std::ptrdiff_t(order.size()) - 1) / 2;
    std::nth_element(order.begin(), middle, order.end(), [&](std::uint64_t a, std::uint64_t b) {
        return runs[a].total != runs[b].total ? runs[a].total < runs[b].total : a < b;
    });
    return *middle;
}

}  // namespace

Quantiles quantiles_of(std::vector<double> values) {
    core::require(!values.empty(), "quantiles are of one value at least");
    Quantiles result;
    double sum = 0;
    for (double value : values) sum += value - values.front();
    result.mean = values.front() + sum / double(values.size());
    std::sort(values.begin(), values.end());
    const auto at = [&](double share) {
        const double rank = share * double(values.size() - 1);
        const auto below = std::size_t(rank);
        const auto above = std::min(below + 1, values.size() - 1);
        return values[below] + (values[above] - values[below]) * (rank - double(below));
    };
    result.p10 = at(0.1);
    result.p50 = at(0.5);
    result.p90 = at(0.9);
    return result;
}

JobDistribution simulate_job(const JobModel& model, const SimulationRule& rule, const Goals& goals) {
    core::require(rule.runs > 0, "a distribution is of one run at least");
    std::vector<JobRun> runs(std::size_t(rule.runs));
    // Runs of one piece of work: a few milliseconds of it.
    constexpr std::size_t block = 64;
    std::atomic<bool> is_hopeless{false};
    core::for_each_in_parallel((runs.size() + block - 1) / block, rule.threads, [&](std::size_t piece, int) {
        const std::size_t end = std::min(runs.size(), (piece + 1) * block);
        for (std::size_t i = piece * block; i < end && !is_hopeless; ++i) {
            runs[i] = simulate_run(model, rule.seed, i);
            if (!runs[i].is_finished) is_hopeless = true;
        }
    });
    JobDistribution result;
    result.runs = rule.runs;
    result.unfinished =
        std::count_if(runs.begin(), runs.end(), [](const JobRun& run) { return !run.is_finished; });
    if (result.unfinished > 0) return result;
    const auto hours = [](core::Seconds time) { return time.value / seconds_per_hour; };
    result.hours = quantiles_of(runs, [&](const JobRun& run) { return hours(run.total); });
    result.goodput = quantiles_of(runs, [](const JobRun& run) { return run.goodput; });
    result.interruptions =
        quantiles_of(runs, [](const JobRun& run) { return double(run.failures + run.reclaims); });
    if (runs.front().usd) result.usd = quantiles_of(runs, [](const JobRun& run) { return run.usd->value; });
    result.failures_mean = mean_of(runs, [](const JobRun& run) { return double(run.failures); });
    result.reclaims_mean = mean_of(runs, [](const JobRun& run) { return double(run.reclaims); });
    result.lost_hours = mean_of(runs, [&](const JobRun& run) { return hours(run.lost); });
    result.detecting_hours = mean_of(runs, [&](const JobRun& run) { return hours(run.detecting); });
    result.restarting_hours = mean_of(runs, [&](const JobRun& run) { return hours(run.restarting); });
    result.waiting_hours = mean_of(runs, [&](const JobRun& run) { return hours(run.waiting); });
    result.reduced_hours = mean_of(runs, [&](const JobRun& run) { return hours(run.reduced); });
    const double variance = mean_of(runs, [&](const JobRun& run) {
        const double difference = hours(run.total) - result.hours.mean;
        return difference * difference;
    });
    constexpr double both_sides_95_pct = 1.96;  // standard deviations of a normal law
    result.hours_mean_error = both_sides_95_pct * std::sqrt(variance / double(rule.runs));
    result.chances = chances_of(runs, goals);
    result.median_run = median_of(runs);
    return result;
}

}  // namespace jobs
