// A threshold on the stage time turns the problem into fewest devices (replicated_search.h). Bisection over
// it, each success replaced by its true largest time, ends when nothing below the best is possible.
#include "partition/replicated/replicated_placement.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include <fmt/core.h>

#include "core/errors.h"
#include "partition/replicated/replicated_reduction.h"
#include "partition/replicated/replicated_search.h"

namespace partition {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

std::string infeasible_reason(const ReplicatedProblem& problem) {
    std::int64_t most_demanding = 0;
    double largest = 0;
    for (const ConfigurableNode& node : problem.nodes) {
        double least = infinity;
        for (const auto& [tensor, list] : node.configurations)
            for (const NodeConfiguration& c : list)
                if (tensor <= problem.devices)
                    least = std::min(least, c.memory_per_sample.value + c.memory_fixed.value);
        if (least > largest) {
            largest = least;
            most_demanding = node.id;
        }
    }
    return fmt::format(
        "no split into stages fits {} devices of {:.0f} bytes; node {} alone needs {:.0f} bytes on each of "
        "its devices at the least",
        problem.devices, problem.memory_limit.value, most_demanding, largest);
}

ReplicatedResult solve(const ReplicatedProblem& problem, const ReplicatedOptions& options) {
    ReplicatedResult result;
    const auto begin = std::chrono::steady_clock::now();
    ReplicatedSearch search(problem, options);
    const auto report = [&](double refuted) {
        if (options.progress)
            options.progress(
                {.objective = result.is_feasible ? result.objective.value : infinity,
                 .lower_bound = refuted,
                 .seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()});
    };
    auto offer = [&](std::vector<ReplicatedStage> stages) {
        core::Seconds largest;
        for (const ReplicatedStage& stage : stages) {
            core::require(stage.memory <= problem.memory_limit * (1 + 1e-12),
                          "every stage of an answer fits its devices");
            largest = std::max(largest, stage.time);
        }
        if (!result.is_feasible || largest < result.objective) {
            result.is_feasible = true;
            result.objective = largest;
            result.stages = std::move(stages);
        }
    };
    if (auto stages = search.decide(core::Seconds(infinity), false)) offer(std::move(*stages));
    result.lower_bound = search.lower_bound();
    if (!result.is_feasible) {
        result.is_proven_infeasible = search.covers_all_downsets() && !search.is_out_of_time();
        result.reason = search.is_out_of_time()
                            ? "the time limit passed before a placement was found or excluded"
                        : search.covers_all_downsets()
                            ? infeasible_reason(problem)
                            : infeasible_reason(problem) +
                                  "; of the graph's sets only those of one topological order were tried";
        return result;
    }
    // What is achievable at all is far above the optimum, and a low threshold is decided sooner than a high
    // one: up from the bound to the first success.
    double refuted = result.lower_bound.value;
    for (double step = 0.02;
         refuted > 0 && refuted * (1 + step) < result.objective.value && !search.is_out_of_time();
         step *= 2) {
        const double threshold = refuted * (1 + step);
        if (auto stages = search.decide(core::Seconds(threshold), false)) {
            offer(std::move(*stages));
            break;
        }
        if (!search.is_out_of_time()) refuted = threshold;
        report(refuted);
    }
    // Bisection. `low` is refuted (or the relaxation's bound), `result.objective` achieved.
    auto bisect = [&](double low, double high, bool is_optimistic) {
        while (high - low > 1e-9 * high && !search.is_out_of_time()) {
            double middle = std::min(0.5 * (low + high), high * (1 - 0.5e-9));
            auto stages = search.decide(core::Seconds(middle), is_optimistic);
            if (search.is_out_of_time()) break;
            if (!stages) {
                low = middle;
            } else if (is_optimistic) {
                high = middle;
            } else {
                offer(std::move(*stages));
                high = std::min(middle, result.objective.value);
            }
            report(low);
        }
        return low;
    };
    refuted = bisect(refuted, result.objective.value, false);
    if (!search.covers_all_downsets()) {
        result.lower_bound = std::min(result.lower_bound, result.objective);
        return result;
    }
    if (search.has_open_knapsacks()) refuted = bisect(result.lower_bound.value, result.objective.value, true);
    result.lower_bound = core::Seconds(std::min(refuted, result.objective.value));
    result.is_proven_optimal =
        !search.is_out_of_time() && result.objective.value - refuted <= 2e-9 * result.objective.value;
    if (result.is_proven_optimal) result.lower_bound = result.objective;
    return result;
}

}  // namespace

ReplicatedResult place_replicated(const ReplicatedProblem& problem, const ReplicatedOptions& options) {
    if (problem.nodes.empty()) return {};
    const ReducedReplication reduced = without_free_nodes(problem);
    ReplicatedResult result = solve(reduced.problem, options);
    result.stages = with_free_nodes(problem, reduced, result.stages);
    return result;
}

}  // namespace partition
