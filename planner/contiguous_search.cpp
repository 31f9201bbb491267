// Exact contiguous placement: a shortest path, by largest edge, in the lattice of downsets of the precedence order.
//
// A state is a downset with the devices used so far and the smallest possible largest load. A pass with threshold T finds the optimum if it is below T, else proves
// T a lower bound. Thresholds climb from the relaxation's bound towards the incumbent of the linearised dynamic program, so most of the lattice is never visited.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>

#include "core/diagnostics.h"
#include "planner/contiguous_pass.h"
#include "planner/lattice_pass.h"
#include "planner/linear_placement.h"
#include "planner/placement.h"
#include "planner/placement_reduction.h"

namespace planner {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

using Clock = std::chrono::steady_clock;

constexpr std::size_t most_enumerated_downsets = 20000;  // some hundred million comparisons a pass

struct Search {
    const PlacementOptions& options;
    Clock::time_point begin = Clock::now(), deadline = Clock::time_point::max();

    void report(double objective, double lower_bound) const {
        if (options.progress) options.progress({objective, lower_bound, std::chrono::duration<double>(Clock::now() - begin).count()});
    }
};

// The exact search on the items as they are, from an incumbent (none: empty).
PlacementResult solve(const PlacementProblem& problem, std::vector<PlacedStage> incumbent, const Search& search) {
    PlacementResult result;
    double lower = placement_lower_bound(problem).value, upper = infinity;
    result.stages = std::move(incumbent);
    if (!result.stages.empty()) {
        upper = largest_load(problem, result.stages).value;
        result.is_feasible = true;
    }
    search.report(upper, lower);
    // Everything on one device with every transfer counted: no stage can be heavier.
    double ceiling = 0, slowness = 1;
    for (const DeviceClass& device : device_classes(problem)) slowness = std::max({slowness, device.slowness, device.transfer_slowness});
    for (const PlacementItem& item : problem.items) ceiling += std::max(item.accelerator_time.value, item.cpu_time.value);
    for (const Transfer& transfer : problem.transfers) ceiling += transfer.time.value;
    ceiling = ceiling * slowness * (1 + 1e-9) + std::numeric_limits<double>::min();

    const SearchGraph graph(problem);
    // Where memory binds, load bounds little: with downsets few enough all are enumerated.
    const std::optional<DownsetLattice> lattice = graph.has_memory_limit ? downset_lattice(problem, graph, most_enumerated_downsets) : std::nullopt;
    // Steps grow fourfold: a pass costs little less below the optimum than above it, so few may fail.
    const double top = std::min(upper, ceiling);
    // Without an incumbent memory binds, not load: one pass without a threshold decides.
    double threshold = lower, step = std::isinf(upper) ? top : (top - lower) / 64;
    bool is_done = upper <= lower * (1 + 1e-11);
    while (!is_done) {
        threshold = std::min(top, threshold + step);
        step *= 4;
        if (!(threshold > lower)) threshold = top;
        PassResult pass = lattice ? lattice_pass(problem, graph, *lattice, threshold, search.deadline)
                                  : contiguous_pass(problem, graph, threshold, lower, search.options.threads, search.deadline);
        result.expanded += pass.expanded;
        if (!pass.stages.empty() && pass.value < upper) {
            upper = pass.value;
            result.stages = std::move(pass.stages);
            result.is_feasible = true;
        }
        if (pass.outcome == PassResult::Outcome::out_of_time) break;
        if (pass.outcome == PassResult::Outcome::none) lower = std::max(lower, threshold);
        is_done = pass.outcome == PassResult::Outcome::found || threshold >= top;
        search.report(upper, is_done ? upper : lower);
    }
    result.lower_bound = core::Seconds(lower);
    if (result.is_feasible) {
        result.objective = largest_load(problem, result.stages);
        result.is_proven_optimal = is_done;
        result.lower_bound = is_done ? result.objective : std::min(result.lower_bound, result.objective);
    } else {
        result.is_proven_infeasible = is_done;
    }
    return result;
}

// Stages of the reduced problem in terms of the original items.
std::vector<PlacedStage> unreduced(const PlacementProblem& problem, const ReducedPlacement& reduced, const std::vector<PlacedStage>& stages) {
    std::vector<char> is_placed(problem.items.size(), 0);
    std::vector<std::vector<int>> items(stages.size());
    for (std::size_t s = 0; s < stages.size(); ++s)
        for (int i : stages[s].items)
            for (int member : reduced.members[static_cast<std::size_t>(i)]) {
                items[s].push_back(member);
                is_placed[static_cast<std::size_t>(member)] = 1;
            }
    for (std::size_t i = 0; i < problem.items.size(); ++i)
        if (!is_placed[i]) items[0].push_back(static_cast<int>(i));
    std::vector<PlacedStage> result;
    for (std::size_t s = 0; s < stages.size(); ++s) result.push_back(stage_of(problem, std::move(items[s]), stages[s].device_class, std::min(problem.micro_batches, static_cast<int>(s) + 1)));
    return result;
}

bool respects_memory(const PlacementProblem& problem, const std::vector<PlacedStage>& stages) {
    const std::vector<DeviceClass> classes = device_classes(problem);
    return std::all_of(stages.begin(), stages.end(),
                       [&](const PlacedStage& s) { return s.is_cpu || s.memory <= classes[static_cast<std::size_t>(s.device_class)].memory_limit; });
}

// Numbers stages from the last: there, how many micro-batches a stage keeps in flight is known before what lies in front of it.
PlacementProblem reversed(const PlacementProblem& problem) {
    PlacementProblem result = problem;
    const int n = static_cast<int>(problem.items.size());
    std::reverse(result.items.begin(), result.items.end());
    for (auto& [before, after] : result.precedence) std::tie(before, after) = std::pair(n - 1 - after, n - 1 - before);
    std::sort(result.precedence.begin(), result.precedence.end());
    for (Transfer& transfer : result.transfers) {
        transfer.source = n - 1 - transfer.source;
        for (int& d : transfer.destinations) d = n - 1 - d;
        std::reverse(transfer.destinations.begin(), transfer.destinations.end());
    }
    return result;
}

PlacementResult place(const PlacementProblem& given, const Search& search) {
    PlacementProblem problem = given;
    core::Bytes total_memory;
    for (const PlacementItem& item : problem.items) total_memory += item.memory + item.activations * problem.micro_batches;
    // Where everything fits one device of a class, that class has no limit.
    problem.devices = device_classes(problem);
    bool has_limit = false;
    for (DeviceClass& device : problem.devices) {
        if (total_memory <= device.memory_limit) device.memory_limit = core::Bytes(infinity);
        has_limit = has_limit || (!device.is_cpu && device.count > 0 && std::isfinite(device.memory_limit.value));
    }
    ReducedPlacement reduced = reduce(problem);
    PlacementResult result = solve(reduced.problem, place_on_orders(reduced.problem), search);
    if (result.is_feasible) result.stages = unreduced(problem, reduced, result.stages);
    if (reduced.moved_memory.value > 0 && has_limit) {
        // Merged items moved memory between stages: the merged optimum is feasible only if the stages still fit with it, and a bound only if memory were free
        // for them.
        if (result.is_feasible && !respects_memory(problem, result.stages)) result = {};
        PlacementProblem relaxed = reduced.problem;
        for (std::size_t i = 0; i < relaxed.items.size(); ++i) {
            relaxed.items[i].memory = relaxed.items[i].activations = core::Bytes(0);
            for (int member : reduced.members[i]) {
                const PlacementItem& item = problem.items[static_cast<std::size_t>(member)];
                if (item.accelerator_time.value > 0 || item.cpu_time.value > 0 || !item.runs_on_accelerator || reduced.members[i].size() == 1) {
                    relaxed.items[i].memory += item.memory;
                    relaxed.items[i].activations += item.activations;
                }
            }
        }
        bool is_proven = false;
        if (result.is_proven_optimal) {
            const double lower = placement_lower_bound(relaxed).value;
            is_proven = result.objective.value <= lower * (1 + 1e-11);
            if (!is_proven) {
                PassResult pass = contiguous_pass(relaxed, SearchGraph(relaxed), result.objective.value, lower, search.options.threads, search.deadline);
                is_proven = pass.outcome == PassResult::Outcome::none;
                result.expanded += pass.expanded;
            }
        }
        if (!is_proven) {
            std::vector<PlacedStage> incumbent = result.is_feasible ? result.stages : place_on_orders(problem);
            std::int64_t expanded = result.expanded;
            result = solve(problem, std::move(incumbent), search);
            result.expanded += expanded;
        }
    }
    return result;
}

}  // namespace

PlacementResult place_contiguous(const PlacementProblem& given, const PlacementOptions& options) {
    PlacementResult result;
    Search search{.options = options};
    if (options.time_limit.value < 1e8)
        search.deadline = search.begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options.time_limit.value));
    result.reason = placement_obstacle(given);
    if (!result.reason.empty()) {
        result.is_proven_infeasible = true;
        return result;
    }
    if (given.micro_batches > 1) {
        result = place(reversed(given), search);
        std::reverse(result.stages.begin(), result.stages.end());
        const int n = static_cast<int>(given.items.size());
        for (PlacedStage& stage : result.stages) {
            for (int& item : stage.items) item = n - 1 - item;
            std::reverse(stage.items.begin(), stage.items.end());
        }
    } else {
        result = place(given, search);
    }
    if (result.is_feasible) {
        std::erase_if(result.stages, [](const PlacedStage& s) { return s.items.empty(); });
        settle_memory(given, result.stages);
        result.objective = largest_load(given, result.stages);
        if (result.is_proven_optimal) result.lower_bound = result.objective;
    } else if (result.is_proven_infeasible) {
        core::Bytes needed;
        for (const PlacementItem& item : given.items) needed += item.memory + item.activations;
        std::string room;
        for (const DeviceClass& device : device_classes(given))
            if (!device.is_cpu && device.count > 0) room += (room.empty() ? "" : ", ") + core::format(device.memory_limit) + " on each of " + std::to_string(device.count) + " devices";
        result.reason = "no contiguous placement respects the memory of every device (the search is exhaustive): " + core::format(needed) + " in all, " + room +
                        (given.micro_batches > 1 ? ", activations of several micro-batches in flight" : "");
    } else {
        result.reason = "no placement was found within the time limit, and none is excluded either";
    }
    return result;
}

}  // namespace planner
