// Timing of pipeline orders: replay of compiled orders of 16 stages and 128 micro-batches (in cache),
// extrapolation of long steps, and the search for an order.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <vector>

#include "planner/order/schedule_search.h"
#include "schedule/pipeline/registry.h"
#include "sim/engine/schedule_extrapolation.h"
#include "sim/engine/schedule_timing.h"

namespace {

double seconds_of(const auto& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Of many short batches the best tenth is what the machine does when nobody else is on it; the median is
// shown beside it.
void replay(const char* name, int chunks) {
    schedule::PipelineShape shape;
    shape.ranks = 16;
    shape.chunks = chunks;
    shape.micro_batches = 128;
    const sim::ReplayOrder order(schedule::find_pipeline_schedule(name)->generate(shape));
    sim::ScheduleCosts costs;
    costs.stages.resize(static_cast<std::size_t>(shape.stages()));
    for (std::size_t s = 0; s < costs.stages.size(); ++s)
        costs.stages[s].forward = core::Seconds(1 + 0.01 * static_cast<double>(s % 7));
    costs.transfer = core::Seconds(0.05);
    std::vector<double> ends, rates;
    double sum = 0;
    constexpr int repeats = 50;
    for (int batch = 0; batch < 41; ++batch) {
        const double seconds = seconds_of([&] {
            for (int i = 0; i < repeats; ++i) {
                costs.stages[0].forward = core::Seconds(1 + 1e-6 * i);  // new times in every replay
                sum += order.replay(costs, ends).makespan.value;
            }
        });
        rates.push_back(repeats * static_cast<double>(order.actions()) / seconds / 1e6);
    }
    std::sort(rates.begin(), rates.end());
    fmt::print("  {:<24} {:>7} actions  {:>7.1f} M actions/s (median {:.1f}), checksum {:.6g}\n", name,
               order.actions(), rates[rates.size() * 9 / 10], rates[rates.size() / 2], sum);
}

void extrapolate(const char* name, int chunks) {
    const schedule::PipelineSchedule& entry = *schedule::find_pipeline_schedule(name);
    schedule::PipelineShape shape;
    shape.ranks = 16;
    shape.chunks = chunks;
    shape.micro_batches = 4096;
    sim::ScheduleCosts costs;
    costs.stages.resize(static_cast<std::size_t>(shape.stages()));
    for (std::size_t s = 0; s < costs.stages.size(); ++s)
        costs.stages[s].forward = core::Seconds(1 + 0.25 * static_cast<double>(s % 5));
    sim::ExtrapolatedTiming timing;
    double whole = 0;
    const double short_run = seconds_of([&] { timing = sim::time_extrapolated(entry, shape, costs); });
    const double long_run =
        seconds_of([&] { whole = sim::time_schedule(entry.generate(shape), costs).makespan.value; });
    fmt::print("  {:<24} {} of {} micro-batches played: {:.2f} ms instead of {:.2f} ms, off by {:.2g}\n",
               name, timing.played_micro_batches, shape.micro_batches, 1e3 * short_run, 1e3 * long_run,
               std::abs(timing.makespan.value - whole) / whole);
}

void search(double memory_limit, double spread) {
    planner::OrderProblem problem;
    problem.ranks = 8;
    problem.micro_batches = 32;
    problem.stages.resize(8);
    for (std::size_t s = 0; s < 8; ++s)
        problem.stages[s].forward = core::Seconds(1 + spread * static_cast<double>(s * 3 % 8));
    problem.transfer = core::Seconds(0.05);
    problem.memory_limit = core::Bytes(memory_limit);
    std::optional<planner::FoundSchedule> found;
    const double seconds = seconds_of([&] { found = planner::search_schedule(problem); });
    fmt::print("  limit {:>3}, stages differ by up to {:>3.0f} %: {:.3f} s, {} orders, gap {:.2f} %\n",
               memory_limit, 700 * spread, seconds, found->evaluations,
               100 * (found->objective - found->lower_bound).value / found->objective.value);
}

}  // namespace

int main() {
    fmt::print("replay, 16 ranks, 128 micro-batches, unequal stages\n");
    replay("1f1b", 1);
    replay("zb-h1", 1);
    replay("interleaved-1f1b", 2);
    replay("zb-v", 2);
    replay("dualpipe-v", 2);
    fmt::print("extrapolation, 16 ranks, 4,096 micro-batches, unequal stages\n");
    extrapolate("1f1b", 1);
    extrapolate("zb-h1", 1);
    extrapolate("interleaved-1f1b", 2);
    extrapolate("zb-v", 2);
    fmt::print("search, 8 ranks, 32 micro-batches\n");
    search(8, 0);
    search(16, 0);
    search(8, 0.05);
    search(16, 0.1);
    return EXIT_SUCCESS;
}
