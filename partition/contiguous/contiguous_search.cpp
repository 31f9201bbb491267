// Exact contiguous placement: a shortest path, by largest edge, in the lattice of downsets of the precedence
// order.
//
// A state is a downset with the devices used so far and the smallest possible largest load. A pass with
// threshold T finds the optimum if it is below T, else proves T a lower bound. Thresholds climb from the
// relaxation's bound towards the incumbent of the linearised dynamic program, so most of the lattice is never
// visited.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>

#include "core/diagnostics.h"
#include "core/index/integers.h"
#include "partition/contiguous/contiguous_pass.h"
#include "partition/contiguous/lattice_pass.h"
#include "partition/contiguous/linear_placement.h"
#include "partition/contiguous/placement_reduction.h"
#include "partition/deadline.h"
#include "partition/placement.h"

namespace partition {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// Relative. What fills a device to the byte fits, in whatever order its bytes were added.
constexpr double rounding = 1e-13;
// Relative. Incumbent and lower bound that differ by no more are one: sums of the same times in other orders.
constexpr double met = 1e-11;

constexpr std::size_t most_enumerated_downsets = 20000;  // some hundred million comparisons a pass

struct Search {
    const PlacementOptions& options;
    Clock::time_point begin = Clock::now();
    Deadline deadline = {};

    void report(double objective, double lower_bound) const {
        if (options.progress)
            options.progress(
                {objective, lower_bound, std::chrono::duration<double>(Clock::now() - begin).count()});
    }
};

// Of the objective before a search: no placement is better than `lower`, none of `upper` or above is wanted.
struct ObjectiveBounds {
    double lower = 0, upper = infinity;
};

ObjectiveBounds with_lower_bound(ObjectiveBounds bounds, const PlacementProblem& problem) {
    bounds.lower = std::max(bounds.lower, placement_lower_bound(problem).value);
    return bounds;
}

// The exact search on the items as they are, from an incumbent (none: empty).
PlacementResult solve(const PlacementProblem& problem, std::vector<PlacedStage> incumbent,
                      const ObjectiveBounds& bounds, const Search& search) {
    PlacementResult result;
    double lower = bounds.lower, upper = infinity;
    result.stages = std::move(incumbent);
    if (!result.stages.empty()) {
        upper = largest_load(problem, result.stages).value;
        result.is_feasible = true;
    }
    search.report(upper, lower);
    // Everything on one device with every transfer counted: no stage can be heavier.
    double ceiling = 0, slowness = 1;
    for (const DeviceClass& device : device_classes(problem))
        slowness = std::max({slowness, device.slowness, device.transfer_slowness});
    for (const PlacementItem& item : problem.items)
        ceiling += std::max(item.accelerator_time.value, item.cpu_time.value);
    for (const Transfer& transfer : problem.transfers) ceiling += transfer.time.value;
    ceiling = ceiling * slowness * (1 + 1e-9) + std::numeric_limits<double>::min();

    const SearchGraph graph(problem);
    // Where memory binds, load bounds little: with downsets few enough all are enumerated.
    const std::optional<DownsetLattice> lattice =
        graph.has_memory_limit ? downset_lattice(problem, graph, most_enumerated_downsets) : std::nullopt;
    // Steps grow fourfold: a pass costs little less below the optimum than above it, so few may fail.
    const double wanted = std::min(upper, bounds.upper), top = std::min(wanted, ceiling);
    double threshold = lower, step = std::isinf(wanted) ? lower / 16 : (top - lower) / 64;
    bool is_done = wanted <= lower * (1 + met);
    while (!is_done) {
        threshold = std::min(top, threshold + step);
        step *= 4;
        if (!(threshold > lower)) threshold = top;
        PassResult pass = lattice ? lattice_pass(problem, graph, *lattice, threshold, search.deadline)
                                  : contiguous_pass(problem, graph, threshold, lower, search.options.threads,
                                                    search.deadline);
        result.expanded += pass.expanded;
        if (!pass.stages.empty() && pass.value < std::min(upper, bounds.upper)) {
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
std::vector<PlacedStage> unreduced(const PlacementProblem& problem, const ReducedPlacement& reduced,
                                   const std::vector<PlacedStage>& stages) {
    std::vector<char> is_placed(problem.items.size(), 0);
    std::vector<std::vector<std::size_t>> items(stages.size());
    for (std::size_t s = 0; s < stages.size(); ++s)
        for (std::size_t i : stages[s].items)
            for (std::size_t member : reduced.members[i]) {
                items[s].push_back(member);
                is_placed[member] = 1;
            }
    for (std::size_t i = 0; i < problem.items.size(); ++i)
        if (!is_placed[i]) items[0].push_back(i);
    std::vector<PlacedStage> result;
    for (const std::int32_t s : core::indices(stages))
        result.push_back(stage_of(problem, std::move(items[s]), stages[s].device_class,
                                  std::min(problem.micro_batches, s + 1)));
    return result;
}

bool respects_memory(const PlacementProblem& problem, const std::vector<PlacedStage>& stages) {
    const std::vector<DeviceClass> classes = device_classes(problem);
    return std::all_of(stages.begin(), stages.end(), [&](const PlacedStage& s) {
        return s.is_cpu || s.memory <= classes[s.device_class].most_memory() * (1 + rounding);
    });
}

// The problem with its order turned round, so that the search numbers stages from the last: a stage's
// micro-batches in flight depend on the stages behind it alone.
PlacementProblem reversed(const PlacementProblem& problem) {
    PlacementProblem result = problem;
    const std::size_t n = problem.items.size();
    std::reverse(result.items.begin(), result.items.end());
    for (auto& [before, after] : result.precedence)
        std::tie(before, after) = std::pair(n - 1 - after, n - 1 - before);
    std::sort(result.precedence.begin(), result.precedence.end());
    for (Transfer& transfer : result.transfers) {
        transfer.source = n - 1 - transfer.source;
        for (std::size_t& d : transfer.destinations) d = n - 1 - d;
        std::reverse(transfer.destinations.begin(), transfer.destinations.end());
    }
    return result;
}

// Items of the reduced problem with their own memory alone: what was merged into them lies where there is
// room.
PlacementProblem without_moved_memory(const PlacementProblem& problem, const ReducedPlacement& reduced) {
    PlacementProblem relaxed = reduced.problem;
    for (std::size_t i = 0; i < relaxed.items.size(); ++i) {
        const PlacementItem& own = problem.items[reduced.own[i]];
        relaxed.items[i].memory = own.memory;
        relaxed.items[i].activations = own.activations;
    }
    return relaxed;
}

// Marks merged items that stay by themselves from now on: of every stage that exceeds its memory, the largest
// ones, as many as would relieve it. False where no merged item is left in such a stage.
bool separate_largest(const PlacementProblem& problem, const ReducedPlacement& reduced,
                      const std::vector<PlacedStage>& stages, std::vector<char>& stays) {
    const std::vector<DeviceClass> classes = device_classes(problem);
    std::vector<char> is_own(problem.items.size(), 0);
    for (std::size_t i : reduced.own) is_own[i] = 1;
    bool has_separated = false;
    for (const std::int32_t s : core::indices(stages)) {
        if (stages[s].is_cpu) continue;
        core::Bytes excess = stages[s].memory - classes[stages[s].device_class].most_memory();
        const int in_flight = std::min(problem.micro_batches, s + 1);
        const auto kept = [&](std::size_t i) {
            return problem.items[i].memory + problem.items[i].activations * in_flight;
        };
        std::vector<std::size_t> merged;
        for (std::size_t i : stages[s].items)
            if (!is_own[i] && kept(i).value > 0) merged.push_back(i);
        std::stable_sort(merged.begin(), merged.end(),
                         [&](std::size_t a, std::size_t b) { return kept(a) > kept(b); });
        for (std::size_t m = 0; m < merged.size() && excess.value > 0; ++m) {
            stays[merged[m]] = 1;
            excess -= kept(merged[m]);
            has_separated = true;
        }
    }
    return has_separated;
}

// The search where memory binds. Merging work-free items makes the graph small, but moves their memory to
// where they were merged. Without the moved memory the optimum is a lower bound; it is the answer when its
// stages have room for the moved items as well. Otherwise the optimum with the moved memory is an incumbent,
// and some merged items are separated again, until lower bound and incumbent meet.
PlacementResult place_in_memory(const PlacementProblem& problem, const Search& search) {
    PlacementResult best;
    ObjectiveBounds bounds;
    const auto take = [&](const std::vector<PlacedStage>& stages) {
        if (stages.empty() || !respects_memory(problem, stages)) return false;
        const core::Seconds objective = largest_load(problem, stages);
        if (!best.is_feasible || objective < best.objective) {
            best.is_feasible = true;
            best.stages = stages;
            best.objective = objective;
            bounds.upper = objective.value;
        }
        return true;
    };
    const auto is_met = [&] { return best.is_feasible && best.objective.value <= bounds.lower * (1 + met); };
    take(place_on_orders(problem, search.deadline));
    PlacementOptions quiet = search.options;
    quiet.progress = {};
    const Search unseen{.options = quiet, .begin = search.begin, .deadline = search.deadline};
    std::vector<char> stays(problem.items.size(), 0);
    for (bool is_open = true; is_open;) {
        search.report(bounds.upper, bounds.lower);
        const ReducedPlacement reduced = reduce(problem, stays);
        const PlacementProblem relaxed = without_moved_memory(problem, reduced);
        PlacementResult relaxation = solve(relaxed, {}, with_lower_bound(bounds, relaxed), unseen);
        best.expanded += relaxation.expanded;
        bounds.lower = std::max(bounds.lower, relaxation.lower_bound.value);
        is_open = false;
        if (relaxation.is_proven_infeasible) {  // below the best
            best.is_proven_optimal = best.is_feasible;
            best.is_proven_infeasible = !best.is_feasible;
        } else if (relaxation.is_feasible) {
            relaxation.stages = unreduced(problem, reduced, relaxation.stages);
            if (take(relaxation.stages)) {
                best.is_proven_optimal = relaxation.is_proven_optimal || is_met();
            } else if (relaxation.is_proven_optimal) {
                const PlacementResult merged =
                    solve(reduced.problem, {}, with_lower_bound(bounds, reduced.problem), unseen);
                best.expanded += merged.expanded;
                if (merged.is_feasible) take(unreduced(problem, reduced, merged.stages));
                best.is_proven_optimal = is_met();
                is_open = !best.is_proven_optimal && !search.deadline.has_passed() &&
                          separate_largest(problem, reduced, relaxation.stages, stays);
            }
        }
    }
    best.lower_bound =
        best.is_proven_optimal ? best.objective : core::Seconds(std::min(bounds.lower, bounds.upper));
    return best;
}

PlacementResult search_reduced(const PlacementProblem& given, const Search& search) {
    PlacementProblem problem = given;
    core::Bytes total_memory;
    for (const PlacementItem& item : problem.items)
        total_memory += item.memory + item.activations * problem.micro_batches;
    // Where everything fits one device of a class, that class has no limit.
    problem.devices = device_classes(problem);
    bool has_limit = false;
    for (DeviceClass& device : problem.devices) {
        if (total_memory <= device.most_memory()) device.memory_limit = std::nullopt;
        has_limit = has_limit || (!device.is_cpu && device.count > 0 && device.memory_limit);
    }
    if (has_limit) return place_in_memory(problem, search);
    const ReducedPlacement reduced = reduce(problem);
    const ObjectiveBounds bounds = with_lower_bound({}, reduced.problem);
    PlacementResult result =
        solve(reduced.problem, place_on_orders(reduced.problem, search.deadline, core::Seconds(bounds.lower)),
              bounds, search);
    if (result.is_feasible) result.stages = unreduced(problem, reduced, result.stages);
    return result;
}

}  // namespace

PlacementResult place_contiguous(const PlacementProblem& given, const PlacementOptions& options) {
    PlacementResult result;
    Search search{.options = options};
    search.deadline = Deadline(search.begin, options.time_limit, options.is_stopped);
    result.reason = placement_infeasibility(given);
    if (!result.reason.empty()) {
        result.is_proven_infeasible = true;
        return result;
    }
    if (given.micro_batches > 1) {
        result = search_reduced(reversed(given), search);
        std::reverse(result.stages.begin(), result.stages.end());
        const std::size_t n = given.items.size();
        for (PlacedStage& stage : result.stages) {
            for (std::size_t& item : stage.items) item = n - 1 - item;
            std::reverse(stage.items.begin(), stage.items.end());
        }
    } else {
        result = search_reduced(given, search);
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
            if (!device.is_cpu && device.count > 0)
                room += (room.empty() ? "" : ", ") + core::format(device.most_memory()) + " on each of " +
                        std::to_string(device.count) + " devices";
        result.reason =
            "no contiguous placement respects the memory of every device (the search is exhaustive): " +
            core::format(needed) + " in all, " + room +
            (given.micro_batches > 1 ? ", activations of several micro-batches in flight" : "");
    } else {
        result.reason = "no placement was found within the time limit, and none is excluded either";
    }
    return result;
}

}  // namespace partition
