// Placement without contiguity: seeded simulated annealing over single-item moves, from the best contiguous placement.
//
// The energy is the sum of (load / reference)^8: smooth where the largest load alone is flat, and dominated by the largest loads. A move changes the loads of
// at most three devices (both ends and the holder of a source), so it costs a few incidences. Memory above the limit is a penalty; only placements without any
// are kept.
#include <algorithm>
#include <chrono>
#include <cmath>

#include "core/random.h"
#include "planner/placement.h"

namespace planner {

namespace {

using Clock = std::chrono::steady_clock;

double eighth_power(double x) {
    double square = x * x, fourth = square * square;
    return fourth * fourth;
}

class Annealing {
public:
    Annealing(const PlacementProblem& problem, double reference) : problem_(problem), devices_(problem.accelerators + problem.cpus), reference_(reference) {
        incidences_.resize(problem.items.size());
        for (std::size_t e = 0; e < problem.transfers.size(); ++e) {
            incidences_[static_cast<std::size_t>(problem.transfers[e].source)].push_back({e, true});
            for (int d : problem.transfers[e].destinations) incidences_[static_cast<std::size_t>(d)].push_back({e, false});
        }
    }

    // Devices 0 ... accelerators - 1 are accelerators, then CPUs.
    void set(const std::vector<int>& device_of) {
        device_of_ = device_of;
        load_.assign(static_cast<std::size_t>(devices_), 0);
        memory_.assign(static_cast<std::size_t>(devices_), 0);
        held_.assign(problem_.transfers.size() * static_cast<std::size_t>(devices_), 0);
        for (std::size_t i = 0; i < problem_.items.size(); ++i) {
            load_[static_cast<std::size_t>(device_of_[i])] += work(i, device_of_[i]);
            memory_[static_cast<std::size_t>(device_of_[i])] += problem_.items[i].memory.value;
        }
        for (std::size_t e = 0; e < problem_.transfers.size(); ++e) {
            for (int d : problem_.transfers[e].destinations) ++held(e, device_of_[static_cast<std::size_t>(d)]);
            for (int device = 0; device < problem_.accelerators; ++device) load_[static_cast<std::size_t>(device)] += paid(e, device);
        }
    }

    bool may_hold(std::size_t item, int device) const { return device >= problem_.accelerators || problem_.items[item].runs_on_accelerator; }

    void move(std::size_t item, int to) {
        int from = device_of_[item];
        for (auto [e, is_source] : incidences_[item]) {
            int holder = device_of_[static_cast<std::size_t>(problem_.transfers[e].source)];
            change(e, from, to, holder, -1);
            if (is_source) {
                device_of_[item] = to;
            } else {
                --held(e, from);
                ++held(e, to);
            }
            change(e, from, to, holder, +1);
            device_of_[item] = from;  // until the last transfer is done: the others are still counted from this side
        }
        load_[static_cast<std::size_t>(from)] -= work(item, from);
        load_[static_cast<std::size_t>(to)] += work(item, to);
        memory_[static_cast<std::size_t>(from)] -= problem_.items[item].memory.value;
        memory_[static_cast<std::size_t>(to)] += problem_.items[item].memory.value;
        device_of_[item] = to;
    }

    double energy() const {
        double sum = 0;
        for (int d = 0; d < devices_; ++d) {
            sum += eighth_power(load_[static_cast<std::size_t>(d)] / reference_);
            if (d < problem_.accelerators) {
                double over = memory_[static_cast<std::size_t>(d)] - problem_.memory_limit.value;
                if (over > 0) sum += 10 * (1 + over / problem_.memory_limit.value);
            }
        }
        return sum;
    }
    double largest() const { return *std::max_element(load_.begin(), load_.end()); }
    bool respects_memory() const {
        for (int d = 0; d < problem_.accelerators; ++d)
            if (memory_[static_cast<std::size_t>(d)] > problem_.memory_limit.value) return false;
        return true;
    }
    int device_of(std::size_t item) const { return device_of_[item]; }
    const std::vector<int>& devices_of() const { return device_of_; }
    int devices() const { return devices_; }

private:
    double work(std::size_t item, int device) const {
        return device < problem_.accelerators ? problem_.items[item].accelerator_time.value : problem_.items[item].cpu_time.value;
    }
    int& held(std::size_t e, int device) { return held_[e * static_cast<std::size_t>(devices_) + static_cast<std::size_t>(device)]; }
    int held(std::size_t e, int device) const { return held_[e * static_cast<std::size_t>(devices_) + static_cast<std::size_t>(device)]; }
    double paid(std::size_t e, int device) const {
        if (device >= problem_.accelerators) return 0;
        const Transfer& transfer = problem_.transfers[e];
        bool is_holder = device_of_[static_cast<std::size_t>(transfer.source)] == device;
        return (is_holder ? held(e, device) < std::ssize(transfer.destinations) : held(e, device) > 0) ? transfer.time.value : 0;
    }
    void change(std::size_t e, int from, int to, int holder, int sign) {
        load_[static_cast<std::size_t>(from)] += sign * paid(e, from);
        load_[static_cast<std::size_t>(to)] += sign * paid(e, to);
        if (holder != from && holder != to) load_[static_cast<std::size_t>(holder)] += sign * paid(e, holder);
    }

    const PlacementProblem& problem_;
    int devices_;
    double reference_;
    std::vector<std::vector<std::pair<std::size_t, bool>>> incidences_;
    std::vector<int> device_of_, held_;
    std::vector<double> load_, memory_;
};

std::vector<PlacedStage> stages_of(const PlacementProblem& problem, const std::vector<int>& device_of) {
    std::vector<PlacedStage> stages;
    for (int d = 0; d < problem.accelerators + problem.cpus; ++d) {
        std::vector<int> items;
        for (std::size_t i = 0; i < device_of.size(); ++i)
            if (device_of[i] == d) items.push_back(static_cast<int>(i));
        if (!items.empty()) stages.push_back(stage_of(problem, std::move(items), d >= problem.accelerators));
    }
    return stages;
}

}  // namespace

PlacementResult place_anywhere(const PlacementProblem& problem, const PlacementOptions& options) {
    const Clock::time_point begin = Clock::now();
    auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
    PlacementOptions for_contiguous;
    for_contiguous.time_limit = core::Seconds(std::min(30.0, 0.3 * options.time_limit.value));
    PlacementResult result = place_contiguous(problem, for_contiguous);
    if (!placement_obstacle(problem).empty() || problem.items.empty()) return result;
    result.lower_bound = placement_lower_bound(problem);
    result.is_proven_infeasible = false;
    const std::size_t n = problem.items.size();
    std::vector<int> start(n, problem.cpus > 0 ? problem.accelerators : 0);
    double best = std::numeric_limits<double>::infinity();
    if (result.is_feasible) {
        int accelerator = 0, cpu = problem.accelerators;
        for (const PlacedStage& stage : result.stages) {
            int device = stage.is_cpu ? cpu++ : accelerator++;
            for (int i : stage.items) start[static_cast<std::size_t>(i)] = device;
        }
        best = result.objective.value;
    }
    Annealing state(problem, std::max(result.lower_bound.value, 1e-300));
    core::Random random(0x5eed);
    std::vector<int> best_devices = start;
    bool has_improved = false;
    // One round: hot enough to move whole layers, cooled to single moves. Rounds alternate between the start and the best so far.
    const std::int64_t moves = std::min<std::int64_t>(20'000'000, 12'000 * static_cast<std::int64_t>(n) + 200'000);
    const int rounds = 12;
    for (int round = 0; round < rounds && elapsed() < options.time_limit.value && state.devices() > 1; ++round) {
        if (best <= result.lower_bound.value * (1 + 1e-12)) break;
        state.set(round % 2 == 0 ? start : best_devices);
        double energy = state.energy();
        const double hot = round % 2 == 0 ? 0.5 : 0.05, cold = 1e-5;
        double temperature = hot;
        const double cooling = std::pow(cold / hot, 1000.0 / static_cast<double>(moves));
        for (std::int64_t m = 0; m < moves; ++m) {
            if (m % 1000 == 0) {
                temperature *= cooling;
                if (m % 10000 == 0 && elapsed() > options.time_limit.value) break;
            }
            std::size_t item = static_cast<std::size_t>(random.below(n));
            int to = static_cast<int>(random.below(static_cast<std::uint64_t>(state.devices())));
            int from = state.device_of(item);
            if (to == from || !state.may_hold(item, to)) continue;
            state.move(item, to);
            double next = state.energy();
            if (next <= energy || random.uniform() < std::exp((energy - next) / temperature)) {
                energy = next;
                if (state.largest() < best * (1 - 1e-12) && state.respects_memory()) {
                    best = state.largest();
                    best_devices = state.devices_of();
                    has_improved = true;
                }
            } else {
                state.move(item, from);
            }
        }
    }
    if (has_improved) {
        result.stages = stages_of(problem, best_devices);
        result.is_feasible = true;
        result.reason.clear();
    }
    if (result.is_feasible) {
        result.objective = largest_load(problem, result.stages);
        result.lower_bound = std::min(result.lower_bound, result.objective);
    }
    result.is_proven_optimal = result.is_feasible && result.objective.value <= result.lower_bound.value * (1 + 1e-9);
    return result;
}

}  // namespace planner
